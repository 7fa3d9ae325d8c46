"""Flags over environment over testnuc.toml over defaults."""

from __future__ import annotations

import subprocess
import sys

import pytest

from testnuc.testing import LoopbackLLM
from tests.cli.in_process import run_here
from tests.conftest import LABELS, confident, messages


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("message\n" + "\n".join(messages(12)) + "\n")
    return tmp_path


def settings(folder, content, name="testnuc.toml"):
    (folder / name).write_text(content)


def test_the_nearest_wins(folder):
    with LoopbackLLM(confident, record=200) as llm:
        settings(
            folder,
            f'model = "openai/from-file"\nbase_url = "{llm.base_url}"\nk = 0\n'
            '[labels]\nrefund = "wants money back"\ndelivery = "a parcel"\nlogin = "an account"\n'
            '[classify]\ntext-column = "message"\n',
        )
        for flags, environment, model in (
            ([], {}, "from-file"),
            ([], {"TESTNUC_MODEL": "openai/from-environment"}, "from-environment"),
            (["--model", "openai/flag"], {"TESTNUC_MODEL": "openai/from-environment"}, "flag"),
        ):
            code, _, err = run_here("classify", "in.csv", *flags, **environment)
            assert code == 0, err
            assert llm.bodies[-1]["model"] == model
        # descriptions, too
        assert "wants money back" in str(llm.bodies[-1])
        # of one command, over that of all
        settings(folder, (folder / "testnuc.toml").read_text() + 'model = "openai/of-classify"\n')
        code, _, err = run_here("classify", "in.csv")
        assert (code, llm.bodies[-1]["model"]) == (0, "of-classify"), err


def test_another_file_and_labels_in_the_environment(folder):
    with LoopbackLLM(confident) as llm:
        settings(folder, "nonsense = 1")
        settings(folder, f'base-url = "{llm.base_url}"\ntext_column = "message"\n', "other.toml")
        given = {
            "TESTNUC_CONFIG": "other.toml", "TESTNUC_LABELS": '["refund", "delivery", "login"]',
            "TESTNUC_K": "0", "TESTNUC_MODEL": "openai/test",
        }  # fmt: skip
        code, _, err = run_here("classify", "in.csv", **given)
        assert code == 0, err
        code, _, err = run_here("--config", "other.toml", "classify", "in.csv", "--labels",
                                ",".join(LABELS), "--model", "openai/test", "--k", "0")  # fmt: skip
        assert code == 0, err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("modle = 'openai/x'", "'modle' is not a setting; did you mean 'model'?"),
        (
            "[classify]\ntextcolumn = 'x'",
            "'classify.textcolumn' is not a setting; did you mean 'text_column'?",
        ),
        ("[clasify]\nk = 1", "'clasify' is not a setting; did you mean 'classify'?"),
        ("xyzzy = 1", "'xyzzy' is not a setting; choose from"),
        ("k = 'ten'", "k is 'ten'; give an integer"),
        ("k = 1.5", "k is 1.5; give an integer"),
        ("k = [1]", "give a single value"),
        ("budget_usd = true", "budget_usd is True; give a number"),
        ("model = true", "model is True; give a string"),
        ("[classify]\nfull = 'maybe'", "give true or false"),
        ("api_key = 'sk-123456'", "OPENAI_API_KEY"),
        ("[serve]\ntoken = 'abcdef'", "TESTNUC_TOKEN"),
        ("store = 'postgresql://me:hush@host/db'", "contains a password"),
        ("text_column = 'message'\nbase_url = 'http://[::1'", "is not a URL"),
        ("output = 'x.csv'", "'output' is not a setting"),
        ("k = ", "cannot be read as TOML"),
    ],
)
def test_settings_that_are_refused(folder, content, says):
    settings(folder, content)
    code, out, err = run_here("classify", "in.csv", "--labels", "a,b")
    assert code == 2
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert "sk-123456" not in err
    assert "hush" not in err


def test_a_file_that_is_not_there_and_an_environment_that_is_wrong(folder):
    code, _, err = run_here("--config", "nowhere.toml", "classify", "in.csv", "--labels", "a,b")
    assert code == 2
    assert "settings file nowhere.toml does not exist" in err
    code, _, err = run_here("classify", "in.csv", "--labels", "a,b", TESTNUC_K="many")
    assert code == 2
    assert "TESTNUC_K is 'many'; give an integer" in err
    code, _, err = run_here("classify", "in.csv", "--labels", "a,b", TESTNUC_MODLE="openai/x")
    assert "TESTNUC_MODLE is not a setting; did you mean TESTNUC_MODEL?" in err


@pytest.mark.slow
def test_help_is_quick():
    """CPU seconds of a cold start, as a part of what an empty interpreter takes: others' load
    hardly counts."""
    code = (
        "import resource, subprocess, sys\n"
        "before = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL, check=True)\n"
        "after = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)\n"
    )

    def seconds(*arguments):
        taken = [
            float(subprocess.check_output([sys.executable, "-c", code, *arguments]))
            for _ in range(3)
        ]
        return min(taken)

    assert seconds("-m", "testnuc", "--help") < max(0.4, 20 * seconds("-c", "pass"))
