"""Flags over environment over testnuc.toml over defaults."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import get_args

import pytest
from typer.models import OptionInfo

from testnuc.cli import app
from testnuc.testing import LoopbackLLM
from testnuc.trust.review import Review
from tests.cli.in_process import ran, run_here
from tests.conftest import LABELS, confident, messages


@pytest.fixture
def folder(tmp_path):
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
            ran("classify", "in.csv", *flags, **environment)
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
        ran("classify", "in.csv", **given)
        ran("--config", "other.toml", "classify", "in.csv", "--labels",
                                ",".join(LABELS), "--model", "openai/test", "--k", "0")  # fmt: skip


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
        ("k = 'ten'", "testnuc.toml: Invalid value for '--k': "),
        ("k = 1.5", "Invalid value for '--k': "),
        ("k = [1]", "give a single value"),
        ("budget_usd = true", "Invalid value for '--budget-usd': "),
        ("k = true", "Invalid value for '--k': "),
        ("[classify]\nfull = 'maybe'", "Invalid value for '--full': "),
        ("api_key = 'sk-123456'", "OPENAI_API_KEY"),
        ("[serve]\ntoken = 'abcdef'", "TESTNUC_TOKEN"),
        ("store = 'postgresql://me:hush@host/db'", "contains a password"),
        ("text_column = 'message'\nbase_url = 'http://[::1'", "is not a URL"),
        ("output = 'x.csv'", "'output' is not a setting"),
        ("k = ", "cannot be read as TOML"),
        ("a." * 99_000 + "a = 1", "dots"),
        ("[" + "a." * 99_000 + "a]", "dots"),
        ('labels = "a\\u0000b"', "null character"),
        ('head = "\\u0000.head"', "null character"),
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
    assert "TESTNUC_K" in err
    code, _, err = run_here("classify", "in.csv", "--labels", "a,b", TESTNUC_MODLE="openai/x")
    assert "TESTNUC_MODLE is not a setting; did you mean TESTNUC_MODEL?" in err


def test_a_name_has_one_type_in_all_commands():
    """Else a setting for one command would be invalid for another."""
    types = {}
    for command in app.registered_commands:
        for name, parameter in inspect.signature(command.callback).parameters.items():
            if isinstance(parameter.default, OptionInfo):
                kind = get_args(parameter.annotation) or (parameter.annotation,)
                types.setdefault(name, set()).add(kind[0])
    assert {name: kinds for name, kinds in types.items() if len(kinds) > 1} == {}


@pytest.mark.parametrize("place", ["file", "environment"])
def test_settings_of_rare_options_reach_every_command(folder, place):
    given = {"most": "0.5", "stop": "0.9", "max_pending": "7", "delimiter": ","}
    if place == "file":
        settings(folder, "".join(f"{name} = {value!r}\n" for name, value in given.items()))
        given = {}
    variables = {f"TESTNUC_{name.upper()}": value for name, value in given.items()}
    labels = ["--labels", "a,b", "--text-column", "message"]
    ran("classify", "in.csv", *labels, "--dry-run", **variables)
    _, _, err = run_here("report", "in.csv", **variables)
    assert "no column 'text'" in err


@pytest.mark.parametrize("source", ["out.csv", "answers.db"])
def test_an_option_wins_over_the_run_and_the_run_over_the_environment(folder, source):
    place = ["--store", "answers.db"] if source == "answers.db" else []
    with LoopbackLLM(confident) as llm:
        given = ["--labels", ",".join(LABELS), "--model", "openai/test", "--text-column", "message"]
        given += ["--base-url", llm.base_url, "--k", "3", *place, "-o", "out.csv"]
        ran("classify", "in.csv", *given)
    elsewhere = {
        "TESTNUC_MODEL": "openai/other", "TESTNUC_BASE_URL": "http://127.0.0.1:9/v1",
        "TESTNUC_LABELS": "a,b", "TESTNUC_INSTRUCTIONS": "Be strict.", "TESTNUC_K": "4",
    }  # fmt: skip
    ran("review", source, "-n", "5", "--no-open", key=None, **elsewhere)
    assert Review.load("review.json").model == "openai/test"
    # the default, given
    _, _, err = run_here("review", source, "--model", "openai/gpt-4o-mini", key=None)
    if source == "out.csv":
        assert Review.load("review-2.json").model == "openai/gpt-4o-mini"
    else:
        assert "give the options of the run that is meant, or --run N" in err


@pytest.mark.parametrize("command", ["classify", "evaluate", "serve", "review"])
def test_help_is_short_and_names_what_it_leaves_out(command):
    code, out, _ = run_here(command, "--help", COLUMNS="200")
    assert code == 0
    shown, _, rare = out.partition("Rarely needed")
    assert len(re.findall(r"^│ (?=\*? *-)", shown, re.MULTILINE)) <= 26
    assert "--score-labels" in rare


@pytest.mark.slow
def test_help_loads_nothing_that_only_commands_need():
    code = (
        "import sys\nsys.argv = ['testnuc', '--help']\nfrom testnuc.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name for name in ("numpy", "aiohttp", "numba") if f"'{name}'" in done.stderr}
