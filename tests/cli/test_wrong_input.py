"""Wrong input of every command: the message names the fix in words of the command line.

Each row is a command line, its exit status, and parts of what it prints on standard error.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_service import LABELS, TEXTS, publish, serving, settings_for, text_model
from xcray.cli.main import commands_for, main
from xcray.jobs.store.tokens import create_token
from xcray.service.app import create_app

WIDE = "text,labels\nread rows,csv\nopen\nread,a,b\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data set, a model and files; the commands run in it."""
    place = tmp_path_factory.mktemp("walk")
    rows = ({"text": text, "labels": [LABELS[i]]} for i, text in enumerate(TEXTS))
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "rows.csv").write_text("text,labels\nread rows,csv\n")
    (place / "wide.csv").write_text(WIDE)
    (place / "semicolon.csv").write_text("text;labels\nread rows;csv\n")
    (place / "untitled.csv").write_text("title,labels\nread rows,csv\n")
    (place / "texts.txt").write_text("read rows\nparse json\n")
    (place / "rows.svm").write_text("1 1:1\n")
    (place / "file").write_text("x\n")
    (place / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (place / "empty").mkdir()
    text_model(place / "model")
    text_model(place / "tuned" / "model")
    assert main(["data", "build", "jsonl", str(place / "rows.jsonl"), str(place / "data")]) == 0
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """Yield the address of a service with the model `docs`."""
    application = create_app(settings_for(folder / "home"))
    publish(application.state.app_state.registry, "docs", folder / "staged")
    with serving(application) as url:
        yield url


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in the folder, without a server."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XCRAY_SERVER", "")


LOCAL = [
    ("train", 2, "Missing argument 'DIR'"),
    ("train rows.csv -o x", 2, "rows.csv is a file", "xcray data build FORMAT rows.csv DIR"),
    ("train data -o x --solver ppdspars", 2, "did you mean 'ppdsparse'"),
    ("train data -o x --pool thread", 2, "--pool must be one of serial, threads, ray"),
    ("train data -o x -p lam=abc", 2, "lam must be a number, not 'abc'"),
    ("data build rows.jsonl x", 2, "comes before it: xcray data build jsonl rows.jsonl DIR"),
    ("data delta data x --add untitled.csv", 2, "name the fields with --option text_fields=..."),
    ("data upload file", 2, "comes before it: xcray data upload FORMAT file"),
    ("train data -o x --lam 1", 2, "--param lam=VALUE sets a parameter of ppdsparse"),
    ("train data -o x --solve 1", 2, "xcray train --help"),
    ("train data -o x --max-seconds -3", 2, "--max-seconds: '-3' is not a valid time"),
    ("train data -o x --memory-limit 1", 1, "--memory-limit leaves 0 bytes"),
    ("train data -o x --ray-address 10.0.0.1:6379", 2, "--ray-address needs --pool ray"),
    ("retrain model --dataset data -o x", 2, "in --labels"),
    ("retrain model --dataset data -o x --labels nothing", 2, "names like 'csv', 'json'"),
    ("tune data --grid lam=1 -o x --select F1@3", 2, "the measure 'F1@3' must be", "P@1+nDCG@5"),
    ("tune data --grid lam=1 -o x --holdout 2", 2, "--holdout is '2.0'"),
    ("calibrate modle data -o x", 2, "no model at modle", "did you mean 'model'"),
    ("evaluate model", 2, "xcray evaluate MODEL... DATA"),
    ("evaluate model modle data", 2, "no model directory modle; did you mean 'model'"),
    ("report model --out model", 1, "choose another --out"),
    ("predict model x --deadline-ms -1", 2, "--deadline-ms is -1"),
    ("predict model x --allow csv --deny csv", 2, "to --allow that is not in --deny"),
    ("predict model x --allow set:none", 2, "no label and no set 'set:none'", "names like"),
    ("predict model x --probabilities", 2, "train with --calibrate", "xcray calibrate"),
    ("predict model --file rows.jsonl", 2, "--file reads svmlight", "predict-batch"),
    ("predict tuned x", 2, "no model directory tuned; did you mean 'tuned/model'?"),
    ("report tuned", 2, "did you mean 'tuned/model'?"),
    ("predict-batch nosuch rows.csv x", 2, "no model directory nosuch"),
    ("predict-batch model nosuch x", 2, "there is no file nosuch"),
    ("predict model --file texts.txt", 2, "no INDEX:VALUE", "xcray predict MODEL < "),
    ("predict-batch model file x", 2, "--format, one of parquet, svmlight", "one text per line"),
    ("predict-batch model rows.csv x --on-error no", 2, "--on-error must be one of fail, skip"),
    ("predict-batch model rows.csv x --text-fields no", 2, "--text-fields; --indices-field"),
    ("predict-batch model rows.jsonl x --format svmlight", 2, "--format jsonl?"),
    ("train data -o x --dashboard", 2, "--dashboard needs --pool ray"),
    ("predict-batch model rows.csv x --ray-address a:1", 2, "--ray-address needs --pool ray"),
    ("solvers ppdspars", 2, "did you mean 'ppdsparse'"),
    ("solvers nosuch", 2, "there are: ppdsparse, dismec"),
    ("data build jsnl rows.jsonl x", 2, "no format 'jsnl'; did you mean 'jsonl'"),
    ("data build jsonl rows.jsonl x --option min_df=2", 2, "write text.min_df"),
    ("data build jsonl rows.jsonl x --option max_feature=2", 2, "did you mean 'max_features'"),
    ("data build synthetic x --option synthetic.row=2", 2, "did you mean 'rows'"),
    ("data build jsonl rows.jsonl x --label-field no", 2, "--text-fields and --label-field, or"),
    ("data build jsonl rows.csv x", 2, "hint: FORMAT csv?"),
    ("data build csv semicolon.csv x", 2, "hint: read it with --delimiter ';'"),
    ("data build csv rows.csv x --label-field no", 2, "--option header=false and --option columns"),
    ("data build jsonl data x", 2, "data is a directory, not a file"),
    ("data build npz data x", 2, "data is a directory, not a file"),
    ("data build parquet data x", 2, "data is a directory, not a file"),
    ("data show empty", 2, "empty is not a data set: it has no manifest.json"),
    ("compare nosuch dismec", 2, "nosuch"),
    ("compare data dismec", 2, "build it with --test FILE"),
    ("train empty -o x", 2, "empty is not a data set"),
    ("data build jsonl rows.jsonl x --like nosuch", 2, "--like: there is no model or data set"),
    ("data build cvs rows.csv x", 2, "did you mean 'csv'"),
    ("data upload jsonl", 2, "xcray data upload jsonl INPUT"),
    ("models card data", 2, "a data set, not a model"),
    ("models compare model model --dataset data --gate P@1", 2, "such as P@1 >= -0.2"),
    ("models compare model modle --dataset data", 2, "no model directory modle"),
    ("models import npz file x --labels nosuch", 2, "there is no file nosuch"),
    ("models import npz file x --labels data", 2, "data is a directory, not a file"),
    ("models import npz file x --labels latin.txt", 2, "latin.txt is not UTF-8"),
    ("models push model nosuch", 2, "'nosuch' is not a supported storage: write s3://"),
    ("models alias docs prod 1 --share 0.5", 2, "--share needs --shadow"),
    ("keys list --home nosuch", 2, "no job store in", "--home"),
    ("keys revoke key_a --home nosuch", 2, "no job store in"),
    ("keys secret nosuch/key", 2, "there is no folder nosuch"),
    ("audit --home nosuch", 2, "no job store in"),
    ("store check --home nosuch", 2, "no job store in"),
    ("store verify --home nosuch", 2, "no job store in"),
    ("store sweep --home nosuch", 2, "no job store in"),
    ("store backup copy --home nosuch", 2, "no job store in"),
    ("demo --pool nosuch", 2, "--pool must be one of"),
    ("demo --home file --pool threads", 1, "can't be the home", "--home DIR"),
]


@pytest.mark.parametrize("row", LOCAL, ids=[row[0] for row in LOCAL])
def test_local_commands(
    row: tuple[str, int, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, status, *parts = row
    before = sorted(folder.iterdir())
    assert main(words.split()) == status
    err = capsys.readouterr().err
    assert all(part in err for part in parts), err
    assert "Traceback" not in err
    assert sorted(folder.iterdir()) == before, "the command left files"


REMOTE = [
    ("predict docs:x text", 2, "version 'x' is not a number; write docs:1"),
    ("predict doc text", 2, "no model 'doc'; did you mean 'docs'"),
    ("predict docs text -k 100000", 2, "-k must be 1 to 1000"),
    ("predict docs text --deadline-ms -1", 2, "--deadline-ms: must be greater than 0"),
    ("models show doc", 2, "did you mean 'docs'"),
    ("models load docs:x", 2, "version 'x' is not a number"),
    ("models alias none prod 1", 2, "no model 'none'; there are: docs"),
    ("models alias docs prod 7", 2, "no model docs:7; versions: 1"),
    ("models label-sets show docs sett", 2, "no label set 'sett'; there are: none"),
    ("jobs get nosuch", 2, "no job 'nosuch': `xcray jobs list` lists them"),
    ("jobs list --status nosuch", 2, "--status: must be one of 'PENDING'"),
    ("jobs submit none --model m", 2, "no data set 'none': `xcray data list` lists them"),
    ("data upload csv rows.csv --label-field no", 2, "--text-fields and --label-field"),
    ("data upload csv rows.csv --n-labels 0", 2, "--n-labels"),
    ("data upload csv wide.csv", 2, "csv:3: the row has 1 fields", "csv:4: the row has 3 fields"),
    ("data upload cvs rows.csv", 2, "FORMAT: must be one of", "'dataset' or 'feedback'"),
]


@pytest.mark.parametrize("row", REMOTE, ids=[row[0] for row in REMOTE])
def test_commands_of_a_server(
    row: tuple[str, int, str], server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, status, *parts = row
    assert main([*words.split(), "--server", server]) == status
    err = capsys.readouterr().err
    assert all(part in err for part in parts), err


def test_texts_that_the_model_of_a_server_cannot_read_are_reported(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "docs", " ", "quux flurb", "rows", "--server", server]) == 0
    assert "warning EMPTY_ROWS: 2 of 3 rows" in capsys.readouterr().err
    assert main(["predict", "docs", "rows of a csv file", "--server", server]) == 0
    assert capsys.readouterr().err == ""


def test_a_missing_key_names_the_variables_of_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    application = create_app(settings_for(tmp_path / "home"))
    credential = create_token()
    application.state.app_state.store.keys.add(
        "default", "n", ["admin"], credential.digest, key_id=credential.key_id
    )
    with serving(application) as url:
        assert main(["models", "list", "--server", url]) == 1
    err = capsys.readouterr().err
    assert "this needs a key: set XCRAY_KEY or XCRAY_KEY_FILE" in err
    assert "Bearer" not in err


def test_errors_in_json_name_options_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "data", "-o", "x", "--max-seconds", "-3", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["message"].startswith("--max-seconds: ")


def test_texts_that_a_model_cannot_read_are_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "model", "read rows of a csv file"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["predict", "model", "", "quux rows of zork"]) == 0
    err = capsys.readouterr().err
    assert "warning EMPTY_ROWS: 1 of 2 rows have no feature" in err
    assert main(["predict", "model", "quux flurb rows", "--json"]) == 0
    [warning] = json.loads(capsys.readouterr().out)["warnings"]
    assert warning["code"] == "UNKNOWN_WORDS"
    assert "2 of 3 words" in warning["message"]
    assert "'quux', 'flurb'" in warning["message"]
    (tmp_path / "texts.jsonl").write_text('{"text": ""}\n{"text": "quux"}\n{"text": "rows"}\n')
    out = tmp_path / "out"
    assert main(["predict-batch", "model", str(tmp_path / "texts.jsonl"), str(out)]) == 0
    assert "warning EMPTY_ROWS: 2 of 3 rows" in capsys.readouterr().err


def test_invalid_rows_of_tables_are_skipped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(WIDE.encode()))
    words = ["predict-batch", "model", str(path), str(tmp_path / "out")]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "rows.csv.gz:3: the row has 1 fields, 2 are expected" in err
    assert "rows.csv.gz:4: the row has 3 fields" in err
    assert not (tmp_path / "out.run").exists()
    assert main([*words, "--on-error", "skip"]) == 0
    done = capsys.readouterr()
    assert "1 rows predicted, 2 skipped" in done.out
    assert "skipped: rows.csv.gz:3" in done.err


def test_every_command_without_arguments_explains_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in _commands_with_required_arguments():
        assert main(words) == 2, words
        err = capsys.readouterr().err
        assert "--help" in err or "xcray " in err, words


def _commands_with_required_arguments() -> Iterator[list[str]]:
    """Yield the words of each command that has a required parameter."""
    todo = [(commands_for([]), list[str]())]
    while todo:
        command, words = todo.pop()
        todo += [
            (inner, [*words, name]) for name, inner in getattr(command, "commands", {}).items()
        ]
        if any(each.required for each in command.params):
            yield words
