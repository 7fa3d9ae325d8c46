--
-- PostgreSQL database dump
--



SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: testnuc_0_1_0; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA testnuc_0_1_0;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: batches; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE TABLE testnuc_0_1_0.batches (
    id bytea NOT NULL,
    scope bytea NOT NULL,
    facts text NOT NULL,
    requests integer NOT NULL,
    created double precision NOT NULL,
    items bytea NOT NULL,
    remote text,
    outcome text,
    usage text,
    owner bytea NOT NULL,
    until timestamp with time zone NOT NULL
);


--
-- Name: embedders; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE TABLE testnuc_0_1_0.embedders (
    id integer NOT NULL,
    name text NOT NULL,
    dim integer NOT NULL,
    size bigint DEFAULT 0 NOT NULL,
    removals bigint DEFAULT 0 NOT NULL
);


--
-- Name: embedders_id_seq; Type: SEQUENCE; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE testnuc_0_1_0.embedders ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME testnuc_0_1_0.embedders_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: leases; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE UNLOGGED TABLE testnuc_0_1_0.leases (
    key bytea NOT NULL,
    owner bytea NOT NULL,
    call bigint NOT NULL,
    until timestamp with time zone NOT NULL
);


--
-- Name: migrations; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE TABLE testnuc_0_1_0.migrations (
    number integer NOT NULL,
    applied timestamp with time zone DEFAULT now() NOT NULL
);


--
-- Name: predictions; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE TABLE testnuc_0_1_0.predictions (
    key bytea NOT NULL,
    scope integer NOT NULL,
    text bytea NOT NULL,
    sample integer NOT NULL,
    label text,
    confidence double precision,
    said text
);


--
-- Name: removed_1; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE TABLE testnuc_0_1_0.removed_1 (
    number bigint NOT NULL,
    hash bytea NOT NULL
);


--
-- Name: scopes; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE TABLE testnuc_0_1_0.scopes (
    id integer NOT NULL,
    scope bytea NOT NULL,
    facts text NOT NULL
);


--
-- Name: scopes_id_seq; Type: SEQUENCE; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE testnuc_0_1_0.scopes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME testnuc_0_1_0.scopes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: texts_1; Type: TABLE; Schema: testnuc_0_1_0; Owner: -
--

CREATE TABLE testnuc_0_1_0.texts_1 (
    hash bytea NOT NULL,
    vector public.halfvec(16) NOT NULL,
    number bigint,
    text text,
    label text
);


--
-- Data for Name: batches; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.batches (id, scope, facts, requests, created, items, remote, outcome, usage, owner, until) FROM stdin;
\\x609e6844cbe8d3921e0fcb006de41c12	\\xddd11c219ccbaff271d8d3873264a9e4	{"provider":"openai","model":"batched","base_url":"http://localhost:9/v1","labels":["refund","delivery","login"],"none_label":null,"confidence":"verbalized"}	12	1795340916.7625756	\\x	batch_0	completed	{"calls":12,"input_tokens":2129,"cached_tokens":0,"output_tokens":112,"usd":null,"store_hits":0,"coalesced":0,"retries":0}	\\xc8a7922927b57646d83db3cfd3a6ce56	2026-11-22 09:49:06.772063+00
\\x9d44290b10b476510b7b6e47df7c99c7	\\x8f9243c6d2cdbd01aace8c48fb257402	{"provider":"anthropic","model":"batched","base_url":"http://localhost:9/v1","labels":["refund","delivery","login"],"none_label":null,"confidence":"verbalized"}	12	1795340916.9080043	\\x	msgbatch_1	ended	{"calls":12,"input_tokens":2129,"cached_tokens":0,"output_tokens":112,"usd":null,"store_hits":0,"coalesced":0,"retries":0}	\\xae6f21aad791aecf967011d814cf5b23	2026-11-22 09:49:06.928664+00
\\x9bfbec05f1b3df03723a9aea07e50976	\\x55a8aece9b8465702ca90fcc047dbd25	{"provider":"openai","model":"open","base_url":"http://localhost:9/v1","labels":["refund","delivery","login"],"none_label":null,"confidence":"verbalized"}	12	1795340917.0775902	\\x010000006ae5781d5ec9f17f1592d466de4f1f2c97f39d094fb65f47c84b4ced54188b6400000000010000006a958654631b5a467aff4847a3c9d7c3ac1bca83be8ed2f8ac5ef602591e7c5400000000010000002c42f4f32af17595a3c5128f39e28e6fd1e1af25fe8a6ec3f61ed835051608270000000001000000391323a947070bcd8c80eb06e89d3523a989382b2ba4560be5d1bf5079bba9a80000000001000000556ec8838a0e74df8038c562cdad908d8e1ba2a6a65d1efe62d635fb4b707807000000000100000029c8b038e88ae8700dbdc80c036c05527a0395e8cdab42ad73227c0e5dfbb47c000000000100000065b52d83d77043a2b21b7635de91d43ae514194f54829ba40fec4540854d955c00000000010000000c8ab14a1880a5b48c5793965d1b1ed2c163a10dc3b418e948e57bc0d1e48ed500000000010000003e49fcab397a1bd55e20f9c3852be4f44cea6574735e6a0bf8135a07a40f39f60000000001000000b858aa5a329964b0b5349a8c8b099c504f299f069bd846576d11f15498ad58b80000000001000000daad0069094211584859a9f5f6253a9ca49339989f30ad36305fc2e4205d91b30000000001000000c3eb901451e965e61a2a4df54b71c20d3b6c7a36767e89f4e495ff3cf9f1930100000000	batch_0	\N	\N	\\xfb3bf727b12a0d643e59ed80e1cf40f8	2026-11-22 09:49:07.084134+00
\.


--
-- Data for Name: embedders; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.embedders (id, name, dim, size, removals) FROM stdin;
1	testnuc/hash-16-0	16	22	10
\.


--
-- Data for Name: leases; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.leases (key, owner, call, until) FROM stdin;
\.


--
-- Data for Name: migrations; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.migrations (number, applied) FROM stdin;
1	2026-11-22 09:48:34.375085+00
2	2026-11-22 09:48:34.375085+00
\.


--
-- Data for Name: predictions; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.predictions (key, scope, text, sample, label, confidence, said) FROM stdin;
\\x0538684d9c095d8a4f3d54f197cec4c1	1	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\x0a8a734ab9056becc3f99618e206351f	1	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x14ea46f5b4dbacb1c7871b6ecb6c61dc	1	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\x2a4b7e45cd4af6dfad165259cbfe66d1	1	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\x339aab7c8f56e69f58c376bb57a7ee7f	1	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x34d2434ca11e2a67d0804b1342a108b0	1	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x353557c3d24d864dfe7a4b1dd2712447	1	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\x5bc810a2861f0ed7e48b2725034b9acc	1	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\x7adfadfbc79dc6e9ac2c6ab7b0ff4851	1	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x8188e87dcc80accd8f62db6c7234b50b	1	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x838347412c62549d37847077fef43eab	1	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\xa6dd24b3d555d34808e2d05bc632d8de	1	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\x0b027406bc7b8d92a33c2ab8e7c9944d	3	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x1864aa8352849d1dd209fc2cf3a4ab23	3	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x1bf3ecba0dfaf75fee257e92b34aadf3	3	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\x4a166c79ac9da226db6dc8fd766acd22	3	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x4ea80f4344fb2f780771a9d7e266b133	3	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x5a910db145cace8de77f5f4d61584ae2	3	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x5c6d59113021a9acb79e414b42921e67	3	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\x6d27afbb9f38c8580b4d8de13cbb319e	3	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\x90e022ec02e627b2c0412287a2c8ebf2	3	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\xc10f9e845e1de8fe96cdd3d22346c659	3	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\xd4a1df79fbc410c20f1d120bda73abf3	3	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\xe08ed49e52b8f703e86215743b3d1c38	3	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\xdd176ee834b0a289657be9d3804cfaa0	5	\\x4cea6574735e6a0bf8135a07a40f39f6	0	delivery	0.9957406050928984	\N
\\xf9453667e7d3a5a7058c227c590db10a	5	\\x97f39d094fb65f47c84b4ced54188b64	0	delivery	0.9492900711601614	\N
\\x156a803338f1247643372372904c9988	5	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	refund	0.9776510919142879	\N
\\x1c539fcf4c93b4ef1f9b96654f648224	5	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.9997185438108603	\N
\\x26b09493aa9acaf78aa59d473fea341f	5	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	refund	0.8537535119554455	\N
\\x7b311bc7392af9f52f1899d791a07538	5	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.49225608002292	\N
\\x8a7f68c67cd0e6ac929e6a1a8730bb48	5	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	refund	0.9796761666432294	\N
\\x9fac200892d922c73e113fe4b736bd7b	5	\\xd1e1af25fe8a6ec3f61ed83505160827	0	login	0.9885420309204086	\N
\\xa86f82d3bd41731da1e0ad376d2820c5	5	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.9990850157716629	\N
\\xb0956dd3843a55d81fd996b469c90e4a	5	\\x4f299f069bd846576d11f15498ad58b8	0	delivery	0.966537670983539	\N
\\xbcecfbdaaaed6ae2ad85b85291f22f20	5	\\xa49339989f30ad36305fc2e4205d91b3	0	delivery	0.9105225682975434	\N
\\xfde596d1df9e49ca6e18422aa27a5a6f	5	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.9999994018795539	\N
\\x18d979b060a3e78782096304f671fe89	1	\\xa49339989f30ad36305fc2e4205d91b3	1	login	0.7	\N
\\x1dac6c2c04483dcb1b3f906f3b3e6ff3	1	\\xa989382b2ba4560be5d1bf5079bba9a8	1	delivery	0.8	\N
\\x213814f99357d47e6ba191cfe04c7dcd	1	\\x4f299f069bd846576d11f15498ad58b8	1	refund	0.6	\N
\\x2b0e230fceec53ca3ff91948cca6cc2f	1	\\xe514194f54829ba40fec4540854d955c	1	delivery	0.6	\N
\\x386d63edee8aa1ac9dbfaa71fd0a5314	1	\\x3b6c7a36767e89f4e495ff3cf9f19301	1	login	0.8	\N
\\x3e0a5eb8e13daccbe88022aceac20f7a	1	\\x4f299f069bd846576d11f15498ad58b8	2	refund	0.6	\N
\\x3e8c8da98a856463d692374b7c3f68e6	1	\\xac1bca83be8ed2f8ac5ef602591e7c54	2	login	0.8	\N
\\x492a42a922fe633162085f2f59a79a86	1	\\x7a0395e8cdab42ad73227c0e5dfbb47c	1	login	0.5	\N
\\x576c7d7537eb0e127c11b6433988167c	1	\\x97f39d094fb65f47c84b4ced54188b64	2	refund	0.7	\N
\\x5f0922b5d82f5856cd0a694275cefef9	1	\\x7a0395e8cdab42ad73227c0e5dfbb47c	2	login	0.5	\N
\\x64afe58a20d9d5b2939c4d5fb9886ded	1	\\xe514194f54829ba40fec4540854d955c	2	delivery	0.6	\N
\\x661b47b5ff7befa063359195e1f55d41	1	\\x8e1ba2a6a65d1efe62d635fb4b707807	2	refund	0.5	\N
\\x6b35d3dcd03d87294b846be73ff41efc	1	\\x3b6c7a36767e89f4e495ff3cf9f19301	2	login	0.8	\N
\\x712f1578c3a60123ca134e9395fdbe04	1	\\xd1e1af25fe8a6ec3f61ed83505160827	1	delivery	0.6	\N
\\x860070158ebc778f33117ae18ab1bf16	1	\\xc163a10dc3b418e948e57bc0d1e48ed5	1	delivery	0.5	\N
\\x8936a4439d6e2557b0358ef24c2a731f	1	\\xc163a10dc3b418e948e57bc0d1e48ed5	2	delivery	0.5	\N
\\x8fcb4fd035ee3e046dd067ebe488101b	1	\\xa49339989f30ad36305fc2e4205d91b3	2	login	0.7	\N
\\xa23b278350295e31872ea714a2b8c223	1	\\xa989382b2ba4560be5d1bf5079bba9a8	2	delivery	0.8	\N
\\xbebdd23636f63ed87d08621280e5af09	1	\\x4cea6574735e6a0bf8135a07a40f39f6	2	refund	0.7	\N
\\xc11ec2be5e1842ce5680ff2b738553fc	1	\\x97f39d094fb65f47c84b4ced54188b64	1	refund	0.7	\N
\\xc9bd429874e13da388661e77562ff8e6	1	\\xac1bca83be8ed2f8ac5ef602591e7c54	1	login	0.8	\N
\\xd7d8e02bcf788a4e6d97a311e0a7c830	1	\\x4cea6574735e6a0bf8135a07a40f39f6	1	refund	0.7	\N
\\xe1f97220985db55b7e9ae4e00b4739f9	1	\\x8e1ba2a6a65d1efe62d635fb4b707807	1	refund	0.5	\N
\\xf1561dcfc06f4fe7084b8f86e7d2b15b	1	\\xd1e1af25fe8a6ec3f61ed83505160827	2	delivery	0.6	\N
\\x23e945f65f02ebc69c91231a7cfd7890	1	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\x276d4906eea45717cfa66ef3440ecee0	1	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\x40b61aa2342a0f093fcb02c48c256807	1	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\x5e20ee223d327bea25dff70b57dd5431	1	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x5f66a7ac0f7aad5401f6d4b28fb0e03c	1	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\x754cdfb2b5d0d2582881a84c87df83a4	1	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x90c4377a8eb3b007f792e7d43e40bed1	1	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x9caca79a8005e02108fb77b5d8d973e9	1	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\xa60e85e3a9fa8d438d9bd7aa8b392418	1	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\xd6a6c91dce48c815ca7fe8d18201ce95	1	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\xf3e70c5648a304b0389cea0a57b229e2	1	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\xf9579f84cc7ea10ab4904a21309b8486	1	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x1461b145ce5a00f2ad25a0522f6970cc	1	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\x18bc97c5c36c371e43511b33b995bbd0	1	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\x216e722289b81d3bb1874a0970677aed	1	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x4e378ef345a01ee4739a2ee5702a3854	1	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x83b801ab1a3778e9f75dcf5953623585	1	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\x9ac69d6213bac636d7415b6cae2b2ce3	1	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\xa172605f1eddc89dd68653dcf776fefb	1	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\xafd1f67ece2ee6fec452068db53a6590	1	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\xb8dccf1d6cd19e6ef32cbd863a7b2454	1	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\xcfdbfb2b21fb34c249fe5aa61b7d763b	1	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\xe019e41a6834898c990e124c19271592	1	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\xf69064b0202b7af215bff4e84ddee4e4	1	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x0db81a30e9673b23fff9e89b9f730b23	1	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\x151581ca1b93f0395d2e58ad6cab9445	1	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x1d19e7e0dad1697dfb81997de0b665d5	1	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x23b5eaaa1815ae734c74c373677a136e	1	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x33f93708179269470c10b015369d92c6	1	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\x3821136b39425a8e27ce60e1df4931a2	1	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\x73b4295dec072a17221663da2827bfdd	1	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x9d958a21f210e873ba224c7852940091	1	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\xc61f12688100afc140bc8fcc508c32bb	1	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\xd8b9932c36c1ede01f3985f9f06f86f3	1	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\xda49e9dd7a33a53b7ff6d56e0382141d	1	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\xe20754a33dddc82a2e0f5668a7b2ab16	1	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x0cc4b8599e439e49d9ab7a5af5fe4ef6	1	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x2e2ed93754fc9d0305a96c72e8ed30ff	1	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\x5b36b86af46f15b91cf18a66423b905f	1	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x609d7e67703aa6f4d514add9dfd58047	1	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\x664e137fdeacf04eac5ac1e3db2d92ac	1	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x6a4108f7040a96604e717ff3ecbff259	1	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x808e64c1324b93cbd5fa7d7724c25a95	1	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\x9ee1940bbe31f3ac790fe856cb1bc6e6	1	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\xaff66a2da79cb0e35b4665f7062cbd70	1	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\xc3ebab403a08da9d3c9ad73ad1428abb	1	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\xccf7e3166fe41b8385337ced5a91eaa0	1	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\xdd1227f48542199592df537026ab9c7f	1	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\x00f98666f53001d14809049f84a52da9	13	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\x0fb1f89b4c6d6e169eec034a8b298b7f	13	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x202394a5517d003823aa495c948e3a0b	13	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x29919134c7b8869c20ff86e2c31d3d55	13	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x2e69d1dd14e79c2f378e5eca7b867231	13	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\x72e30089e54db3c0760edc0fa3fb16cd	13	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x8348d936670f9c5a9b682b27a5174284	13	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\x85b19107b12673342e27c2f6f4624f1a	13	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\x888583672626aa1adc2bcbc319a9847b	13	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\xbe4933030e9f17d22adb5137ef9ff462	13	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\xbe9e8dcd9c6fd31a996a5268bb037b76	13	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\xe11aa23427099dfa2c2d3169093d1685	13	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x1633c33f9eee39c35ea7e55b92145626	15	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\x1d10977e90ca0b3d7993c3db18670002	15	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\x289a8fd9d91abe5565f31f2ad0c0d725	15	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x522e71b28cbe9259f63388da26db1e3a	15	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\x5d9c7ba67d35ae632f1fc143085a703b	15	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x63d5cb108a234dc739325c6934872660	15	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\x63e06b03c8faebfee0971f26513bd7de	15	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\x7c2478b0e718f149f60c9ec3f91b00e4	15	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x8df2d9468c7c7857104680c052e31d86	15	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\x9f52287e186a741e9644d89a2417aa94	15	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\xa1967c20ac98eb77fadb333bf0b2fa82	15	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\xd22807e245f6086d9c3db5e9531b99eb	15	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x23186c05e878946581421ec4d90ea0a7	17	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\x3d499b2bc899a9870a2d8427afb88233	17	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x502235ecef427f8de24652d2bdf3b88c	17	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\x5554d6334836ce5ad41ce3bd657db2ba	17	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\\x67489b2ea768b1be3aeac8afee12bcb5	17	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\x76b0b11fff3b039c69d79693446825d0	17	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\x844906d614332a8e181f117b27278bfe	17	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\x966977ee06705d6c47a0023518d93003	17	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\xa6d179f8e0621af32b340cec54c1563c	17	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\xb6cc3bfd10c7b764ad874a71f4465dad	17	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\xcb2d6fa8c2a24453a97e2215fb7d9f1b	17	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\xfc0677cd422e9a2ec5b84584cbcefdb8	17	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x1fd5c0d9c5b766d9d186c1c38c63cf49	19	\\x97f39d094fb65f47c84b4ced54188b64	0	refund	0.7	\N
\\x3f4ee29dc2ec34e623bb89e525a68c23	19	\\x4cea6574735e6a0bf8135a07a40f39f6	0	refund	0.7	\N
\\x4291e5490b5d972a7c0fa3ca72bce8e2	19	\\xa989382b2ba4560be5d1bf5079bba9a8	0	delivery	0.8	\N
\\x448cd2d473bd00215ff6624aa9dc04a1	19	\\x7a0395e8cdab42ad73227c0e5dfbb47c	0	login	0.5	\N
\\x4aa1b4b95e70a7ce5d33119e81239d76	19	\\xc163a10dc3b418e948e57bc0d1e48ed5	0	delivery	0.5	\N
\\x575251ecd0214c8710154543d412b74e	19	\\xac1bca83be8ed2f8ac5ef602591e7c54	0	login	0.8	\N
\\x9badf1000f05cf34e4f7a01c0a2fa976	19	\\x4f299f069bd846576d11f15498ad58b8	0	refund	0.6	\N
\\xdf0b6960661f0af2b6815e1d96f4fe3f	19	\\xd1e1af25fe8a6ec3f61ed83505160827	0	delivery	0.6	\N
\\xe3a01949564d628e6d609627edffadae	19	\\x8e1ba2a6a65d1efe62d635fb4b707807	0	refund	0.5	\N
\\xe46339a0b3f65d9e3af01b2f04c68fe5	19	\\xe514194f54829ba40fec4540854d955c	0	delivery	0.6	\N
\\xeb84e2dee24c1695b6af17cc099ba53b	19	\\xa49339989f30ad36305fc2e4205d91b3	0	login	0.7	\N
\\xfb7f513b76d5a3c4fc13f6bd893c9fe3	19	\\x3b6c7a36767e89f4e495ff3cf9f19301	0	login	0.8	\N
\.


--
-- Data for Name: removed_1; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.removed_1 (number, hash) FROM stdin;
0	\\xc7d7e181a130236972fa2e5cdd782fed
13	\\xc7d7e181a130236972fa2e5cdd782fed
14	\\xc7d7e181a130236972fa2e5cdd782fed
15	\\xc7d7e181a130236972fa2e5cdd782fed
16	\\xc7d7e181a130236972fa2e5cdd782fed
17	\\xc7d7e181a130236972fa2e5cdd782fed
18	\\xc7d7e181a130236972fa2e5cdd782fed
19	\\xc7d7e181a130236972fa2e5cdd782fed
20	\\xc7d7e181a130236972fa2e5cdd782fed
21	\\xc7d7e181a130236972fa2e5cdd782fed
\.


--
-- Data for Name: scopes; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.scopes (id, scope, facts) FROM stdin;
1	\\xb0e87a0f09b9499a1c98d7a3003354f8	{"model":"openai/test","labels":["refund","delivery","login"]}
3	\\x631f21c4ab750de2973044926d5af664	{"model":"anthropic/test","labels":["refund","delivery","login"]}
5	\\x3c937654733a4f71c7fe28b21defb44a	{"model":"local/zero-shot","labels":["refund","delivery","login"]}
13	\\x91120290e653d6d386d2ccea13aaedf3	{"model":"openai/test","labels":["refund","delivery","login"]}
15	\\xc74d53fa313f12c02c90e26ba388f5fb	{"model":"openai/test","labels":["refund","delivery","login","other"]}
17	\\xddd11c219ccbaff271d8d3873264a9e4	{"model":"openai/batched","labels":["refund","delivery","login"]}
19	\\x8f9243c6d2cdbd01aace8c48fb257402	{"model":"anthropic/batched","labels":["refund","delivery","login"]}
21	\\x55a8aece9b8465702ca90fcc047dbd25	{"model":"openai/open","labels":["refund","delivery","login"]}
\.


--
-- Data for Name: texts_1; Type: TABLE DATA; Schema: testnuc_0_1_0; Owner: -
--

COPY testnuc_0_1_0.texts_1 (hash, vector, number, text, label) FROM stdin;
\\x3b6c7a36767e89f4e495ff3cf9f19301	[0.15112305,-0.15112305,-0.25195312,0.07556152,0.7558594,-0.3022461,-0.15112305,0.2770996,0,-0.15112305,0.07556152,0.22668457,-0.20153809,0,0,-0.05038452]	9	cannot log in	\N
\\x4cea6574735e6a0bf8135a07a40f39f6	[0,-0.1875,0,0.1875,-0.4375,0.125,0.1875,0,0.1875,0.0625,-0.375,0,0.125,-0.375,-0.5625,0.1875]	3	return my payment	\N
\\x4f299f069bd846576d11f15498ad58b8	[0,-0.12084961,-0.12084961,0.18127441,0.18127441,-0.63427734,0.18127441,0,0.15100098,-0.27197266,0,-0.060424805,0.18127441,-0.5439453,-0.18127441,-0.09063721]	4	reimburse me now	\N
\\x7a0395e8cdab42ad73227c0e5dfbb47c	[0.14404297,0,0.14404297,0.04800415,-0.04800415,-0.04800415,-0.28808594,0.7680664,-0.14404297,-0.3840332,0,0,-0.1920166,-0.1920166,-0.1920166,0]	11	my account is locked	\N
\\x8e1ba2a6a65d1efe62d635fb4b707807	[0.32666016,0.32666016,0.2993164,-0.02722168,0.10888672,-0.05444336,0.1361084,0,-0.5444336,0.05444336,-0.2722168,-0.02722168,-0.35375977,0,-0.2993164,0.2722168]	2	refund my order	\N
\\x97f39d094fb65f47c84b4ced54188b64	[-0.46557617,0.23278809,0.02116394,0.12695312,0,0.105773926,0.105773926,-0.16931152,-0.16931152,-0.4020996,0.25390625,0.105773926,0.08465576,0.38085938,0.25390625,0.4230957]	1	money back please	\N
\\xa49339989f30ad36305fc2e4205d91b3	[-0.3059082,0.1529541,0.22949219,0.025497437,0,-0.5864258,0.1529541,-0.050994873,0,0,-0.101989746,-0.33154297,0.025497437,-0.484375,0.101989746,0.3059082]	10	password is wrong	\N
\\xa989382b2ba4560be5d1bf5079bba9a8	[-0.14355469,-0.55029297,0.14355469,0.19140625,-0.16748047,0.071777344,0.43066406,0.047851562,-0.2631836,-0.11968994,-0.21533203,0.35888672,-0.16748047,-0.071777344,0.095703125,0.31103516]	5	where is my parcel	\N
\\xac1bca83be8ed2f8ac5ef602591e7c54	[-0.1529541,0.3059082,-0.061187744,0,0.55078125,0.18359375,-0.12237549,0.061187744,0.45898438,-0.3059082,0.1529541,0,-0.18359375,0.1529541,0.3671875,0.061187744]	12	sign in fails	\N
\\xc163a10dc3b418e948e57bc0d1e48ed5	[0.1315918,-0.04385376,-0.61376953,0.1315918,0.30688477,-0.21923828,0.35083008,0.1315918,-0.08770752,0,0,0.1315918,-0.5263672,0,0,-0.04385376]	8	courier lost it	\N
\\xd1e1af25fe8a6ec3f61ed83505160827	[-0.47827148,-0.42529297,0,0,0,-0.05316162,-0.15942383,0.23913574,-0.18603516,-0.23913574,-0.10632324,0.47827148,-0.265625,0,0.02658081,0.31884766]	7	package not here	\N
\\xe514194f54829ba40fec4540854d955c	[0.5908203,-0.13635254,0,0.1817627,-0.4091797,-0.3635254,0,0.27270508,-0.13635254,-0.13635254,-0.13635254,-0.13635254,0,-0.045440674,0.27270508,0.27270508]	6	delivery is late	\N
\\x0d2f2e7b175709b7a8a7cfcbd1794cb0	[0,0,0.6323242,-0.3161621,0.15808105,-0.15808105,-0.6323242,0,0,0,0.15808105,0,0,0,0,-0.15808105]	\N	\N	\N
\\x98b140b018cdf69ce0b8d34e6c190d8b	[0.48657227,-0.16223145,0,0.16223145,-0.3244629,-0.3244629,0,0.16223145,-0.16223145,-0.16223145,0.16223145,-0.48657227,0,0.16223145,0.16223145,0.3244629]	\N	\N	\N
\\xb83f5893edae0b6a25c54d12c967a20d	[0.57714844,0.57714844,0,-0.28857422,0.28857422,0,0,0,0,0,0,-0.28857422,-0.28857422,0,0,0]	\N	\N	\N
\\xc7d7e181a130236972fa2e5cdd782fed	[-0.15686035,-0.10455322,0.10455322,-0.15686035,-0.05227661,0,0,0,0.05227661,-0.15686035,0,0.5229492,0,-0.6274414,-0.3659668,-0.3137207]	\N	take me out	\N
\.


--
-- Name: embedders_id_seq; Type: SEQUENCE SET; Schema: testnuc_0_1_0; Owner: -
--

SELECT pg_catalog.setval('testnuc_0_1_0.embedders_id_seq', 1, true);


--
-- Name: scopes_id_seq; Type: SEQUENCE SET; Schema: testnuc_0_1_0; Owner: -
--

SELECT pg_catalog.setval('testnuc_0_1_0.scopes_id_seq', 21, true);


--
-- Name: batches batches_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);


--
-- Name: embedders embedders_name_key; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.embedders
    ADD CONSTRAINT embedders_name_key UNIQUE (name);


--
-- Name: embedders embedders_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.embedders
    ADD CONSTRAINT embedders_pkey PRIMARY KEY (id);


--
-- Name: leases leases_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (key);


--
-- Name: migrations migrations_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (number);


--
-- Name: predictions predictions_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.predictions
    ADD CONSTRAINT predictions_pkey PRIMARY KEY (key);


--
-- Name: removed_1 removed_1_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.removed_1
    ADD CONSTRAINT removed_1_pkey PRIMARY KEY (number);


--
-- Name: scopes scopes_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.scopes
    ADD CONSTRAINT scopes_pkey PRIMARY KEY (id);


--
-- Name: scopes scopes_scope_key; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.scopes
    ADD CONSTRAINT scopes_scope_key UNIQUE (scope);


--
-- Name: texts_1 texts_1_pkey; Type: CONSTRAINT; Schema: testnuc_0_1_0; Owner: -
--

ALTER TABLE ONLY testnuc_0_1_0.texts_1
    ADD CONSTRAINT texts_1_pkey PRIMARY KEY (hash);


--
-- Name: batches_open; Type: INDEX; Schema: testnuc_0_1_0; Owner: -
--

CREATE INDEX batches_open ON testnuc_0_1_0.batches USING btree (scope) WHERE (outcome IS NULL);


--
-- Name: texts_1_number; Type: INDEX; Schema: testnuc_0_1_0; Owner: -
--

CREATE UNIQUE INDEX texts_1_number ON testnuc_0_1_0.texts_1 USING btree (number) WHERE (number IS NOT NULL);


--
-- PostgreSQL database dump complete
--


