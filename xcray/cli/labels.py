"""The command group `xcray labels`: what a model knows about its labels, and changes of them."""

from __future__ import annotations

from xcray.cli.models import label_details
from xcray.cli.training import labels

app = labels.app
app.command("list")(label_details.list_labels)
app.command("show")(label_details.show)
