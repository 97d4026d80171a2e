"""`xcray evaluate`: measures of one or several models on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xcray.api.options import ReadingOptions
from xcray.cli.connect import ServerOption, locate_version, model_client
from xcray.cli.models.predict import is_directory
from xcray.cli.terminal import output
from xcray.cli.terminal.completion import complete_datasets, complete_models
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.terminal.evaluations import print_evaluation
from xcray.errors import InputError


@with_options(ReadingOptions)
def evaluate(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="Model directories; or with --server NAME, NAME:VERSION, NAME@ALIAS.",
            show_default=False,
            autocompletion=complete_models,
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            show_default=False,
            help="Data set with the features of the models; or a file of rows and labels, which is "
            "read as the data of the first model.",
            autocompletion=complete_datasets,
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="Rows to use: test or train; default: test rows, if there are any."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("-k", min=1, help="Ranks to measure at. Repeatable; default: 1 3 5."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Bootstrap samples; 0 for no intervals.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap samples.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Cores used by the search.")] = 1,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Also write a picture (SVG).")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Format of a file; default: by its name.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Also measure by the values of a field of a text file."),
    ] = None,
    *,
    options: Options,
    server: ServerOption = None,
) -> None:
    """Compare models on held-out rows: measures with 95 % intervals, by frequency, and timing.

    F1 is that of the sets of the first k labels. Differences are to the first model, on the same
    bootstrap samples. Label frequencies are those of the training part of DATA, or of the file.

    Example: xcray evaluate MODEL MODEL-2 DATA
    """
    if not models or dataset is None:
        raise InputError(
            "give at least one model and a data set or file: xcray evaluate MODEL... DATA",
            code="USAGE",
        )
    from xcray.cli.models.evaluate_remote import evaluate_on_server
    from xcray.cli.models.evaluation_rows import evaluation_rows
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.model.model import Model
    from xcray.training.evaluation import EvaluationOptions, evaluate_models
    from xcray.training.report.evaluation_pictures import evaluation_picture

    how = EvaluationOptions(part, sorted(set(k or (1, 3, 5))), samples, seed, threads)
    with compilation_note():
        if all(is_directory(model, server) for model in models):
            usual = Model.open(models[0]).reading
            given = (dataset, format, options, Path(models[0]), usual)
            with evaluation_rows(*given, by) as rows:
                document = evaluate_models(models, rows.path, how._replace(by=rows.by))
        else:
            absent = next(each for each in models if not is_directory(each, server))
            with model_client(server, absent) as client:
                usual = client.models.version(*locate_version(client, models[0]))["reading"]
                with evaluation_rows(dataset, format, options, None, usual, by) as rows:
                    how = how._replace(by=rows.by)
                    document = evaluate_on_server(client, models, rows, how)
    if dataset.is_file():
        document.update(dataset=dataset.name, part="file")
    if picture is not None:
        evaluation_picture(document).write(picture)
    output.print_json(document)
    print_evaluation(document)
    output.print_warnings(document["warnings"])
    if picture is not None:
        output.print_line(str(picture))
