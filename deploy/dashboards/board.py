"""Building blocks of dashboards: queries, panels and rows, rendered by Grafana's foundation SDK.

Store metrics have the same value at every replica: `store` and `store_rate` aggregate with max.
Replica metrics are summed: `replica` and `replica_rate`. See docs/observing.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

WIDTH: Final = 24  # of Grafana's grid
NUMBER: Final = (4, 4)  # width and height of a panel that is one number
GRAPH: Final = (8, 8)
HERE: Final = 'namespace=~"$namespace"'
ONE: Final = f'{HERE},instance=~"$instance"'
SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TITLES: Final = {
    "xcray-jobs": "xcray / Jobs and queue",
    "xcray-training": "xcray / Training",
    "xcray-ray": "xcray / Training on Ray",
    "xcray-serving": "xcray / Serving",
    "xcray-cluster": "xcray / Cluster",
}
GOOD, FAIR, BAD, PLAIN = "green", "orange", "red", "text"
Steps = Sequence[tuple[float | None, str]]  # (lower bound, colour); the first bound is None


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the legend of its series, with {{label}} placeholders."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel.

    what: description. unit: Grafana unit. steps: colours by value. number: whether it shows one
    number instead of a graph. stack, bars: style of a graph. most: upper end of the axis.
    """

    title: str
    what: str
    queries: tuple[Query, ...]
    unit: str = "short"
    steps: Steps = ((None, GOOD),)
    number: bool = False
    width: int = 0
    stack: bool = False
    bars: bool = False
    most: float | None = None
    decimals: int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Return the width and height on the grid."""
        width, height = NUMBER if self.number else GRAPH
        return self.width or width, height


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A dashboard.

    by_replica: whether it has a variable for replicas. pods: whether it has variables for Ray
    clusters and pods.
    """

    uid: str
    what: str
    rows: tuple[Row, ...]
    by_replica: bool = False
    pods: bool = False


def graph(title: str, what: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """Return a graph of (expression, legend) pairs."""
    return Panel(title, what, tuple(Query(*each) for each in queries), **more)


def number(
    title: str,
    what: str,
    expr: str,
    unit: str = "short",
    steps: Steps = ((None, PLAIN),),
    **more: Any,
) -> Panel:
    """Return a panel with the current value above its history."""
    return Panel(
        title, what, (Query(expr, title.lower()),), unit=unit, steps=steps, number=True, **more
    )


def store(name: str, *by: str, where: str = "") -> str:
    """Return a query for a store metric: the max, because all replicas report the same value."""
    return f"max{_by(by)}({name}{{{_and(HERE, where)}}})"


def store_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """Return the rate of a store counter, per second."""
    return f"max{_by(by)}(rate({name}{{{_and(HERE, where)}}}[{window}]))"


def store_rise(name: str, *by: str, where: str = "", window: str = "$__range") -> str:
    """Return the increase of a store counter over the window."""
    return f"max{_by(by)}(increase({name}{{{_and(HERE, where)}}}[{window}]))"


def replica(name: str, *by: str, where: str = "", how: str = "sum") -> str:
    """Return a query for a replica metric, aggregated by `how`."""
    return f"{how}{_by(by)}({name}{{{_and(ONE, where)}}})"


def replica_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """Return the summed rate of a replica counter, per second."""
    return f"sum{_by(by)}(rate({name}{{{_and(ONE, where)}}}[{window}]))"


def quantile(q: float, name: str, *by: str, of_store: bool = False, where: str = "") -> str:
    """Return a quantile of a histogram over all replicas, optionally `by` labels."""
    rates = (store_rate if of_store else replica_rate)(f"{name}_bucket", "le", *by, where=where)
    return f"histogram_quantile({q}, {rates})"


# For boards with `pods`: the chart's monitors add this label to all Ray series.
CLUSTER: Final = 'ray_io_cluster=~"$ray"'


def ray(name: str, *by: str, where: str = "", how: str = "sum") -> str:
    """Return a query for a Ray or Kubernetes metric over its nodes."""
    return f"{how}{_by(by)}({name}{{{_and(HERE, where)}}})"


def ray_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """Return the summed rate of a Ray counter over its nodes, per second."""
    return f"sum{_by(by)}(rate({name}{{{_and(HERE, where)}}}[{window}]))"


def share(part: str, whole: str) -> str:
    """Return the ratio of two expressions where the whole is positive."""
    return f"{part} / ({whole} > 0)"


def _by(labels: Sequence[str]) -> str:
    """Return the grouping clause of an aggregation."""
    return f" by ({', '.join(labels)}) " if labels else " "


def _and(*conditions: str) -> str:
    """Join label matchers."""
    return ",".join(each for each in conditions if each)


def written(board: Board) -> str:
    """Return the JSON of a dashboard as it is stored in the chart: one panel per line."""
    built = json.loads(json.dumps(_build_dashboard(board).build(), cls=JSONEncoder))
    fields = {key: _line(value) for key, value in sorted(built.items())}
    fields["panels"] = "[\n" + ",\n".join(map(_line, built["panels"])) + "\n]"
    return "{\n" + ",\n".join(f'"{key}":{text}' for key, text in fields.items()) + "\n}\n"


def _line(value: Any) -> str:
    """Return JSON without spaces and line breaks."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _build_dashboard(board: Board) -> dashboard.Dashboard:
    """Build the dashboard."""
    out = (
        dashboard.Dashboard(TITLES[board.uid])
        .uid(board.uid)
        .description(board.what)
        .tags(["xcray"])
        .readonly()
    )
    out.time("now-1h", "now").refresh("30s").timezone("browser").tooltip(
        models.DashboardCursorSync.CROSSHAIR
    )
    out.variables(list(_variables(board)))
    for uid, title in TITLES.items():
        if uid != board.uid:
            link = (
                dashboard.DashboardLink(title.partition(" / ")[2])
                .type(models.DashboardLinkType.LINK)
                .url(f"/d/{uid}")
            )
            out.link(
                link.keep_time(True)
                .include_vars(True)
                .icon("dashboard")
                .tooltip(f"The dashboard {title}")
            )
    top, serial = 0, 0
    for row in board.rows:
        serial += 1
        place = models.GridPos(x=0, y=top, w=WIDTH, h=1)
        out.with_row(dashboard.Row(row.title).id(serial).grid_pos(place))
        top += 1
        for panel, x, y in _placed(row.panels, top):
            serial += 1
            width, height = panel.size
            out.with_panel(
                _panel(panel).id(serial).grid_pos(models.GridPos(x=x, y=y, w=width, h=height))
            )
            top = max(top, y + height)
    return out


def _placed(panels: Sequence[Panel], top: int) -> Iterator[tuple[Panel, int, int]]:
    """Yield panels with x and y, left to right; numbers and graphs never share a line."""
    x, y, height = 0, top, 0
    for panel in panels:
        if x + panel.size[0] > WIDTH or (height and panel.size[1] != height):
            x, y = 0, y + height
        yield panel, x, y
        x, height = x + panel.size[0], panel.size[1]


def _panel(panel: Panel) -> Any:
    """Build one panel."""
    out: Any = _number(panel) if panel.number else _graph(panel)
    out.title(panel.title).description(panel.what).datasource(SOURCE).unit(panel.unit).min(
        0
    ).no_value("–")
    steps = [models.Threshold(value, color) for value, color in panel.steps]
    out.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.most is not None:
        out.max(panel.most)
    if panel.decimals is not None:
        out.decimals(panel.decimals)
    for place, query in enumerate(panel.queries):
        target = (
            prometheus.Dataquery()
            .expr(query.expr)
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + place))
        )
        out.with_target(target.datasource(SOURCE).editor_mode("code").range())
    return out


def _number(panel: Panel) -> stat.Panel:
    """Build a stat panel coloured by its value."""
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields("")
    out = stat.Panel().reduce_options(reduced).graph_mode(kinds.BigValueGraphMode.AREA)
    out.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    return out.color_mode(kinds.BigValueColorMode.VALUE).text_mode(kinds.BigValueTextMode.VALUE)


def _graph(panel: Panel) -> timeseries.Panel:
    """Build a time series panel with lines, areas or bars."""
    out = (
        timeseries.Panel()
        .line_width(2 if not panel.bars else 1)
        .fill_opacity(80 if panel.bars else 30 if panel.stack else 8)
    )
    out.draw_style(kinds.GraphDrawStyle.BARS if panel.bars else kinds.GraphDrawStyle.LINE)
    out.show_points(kinds.VisibilityMode.NEVER).gradient_mode(kinds.GraphGradientMode.NONE)
    out.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    out.stacking(
        common.StackingConfig()
        .mode(kinds.StackingMode.NORMAL if panel.stack else kinds.StackingMode.NONE)
        .group("A")
    )
    dashed = len(panel.steps) > 1
    style = kinds.GraphThresholdsStyleMode.DASHED if dashed else kinds.GraphThresholdsStyleMode.OFF
    out.thresholds_style(common.GraphThresholdsStyleConfig().mode(style))
    legend = common.VizLegendOptions().display_mode(
        kinds.LegendDisplayMode.TABLE if len(panel.queries) > 2 else "list"
    )
    out.legend(
        legend.placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    return out.tooltip(
        common.VizTooltipOptions()
        .mode(kinds.TooltipDisplayMode.MULTI)
        .sort(kinds.SortOrder.DESCENDING)
    )


def _variables(board: Board) -> Iterator[Any]:
    """Yield the dashboard variables: data source, namespace, replica, Ray cluster and pods."""
    what = "The Prometheus that scrapes xcray and Ray"
    yield (
        dashboard.DatasourceVariable("datasource")
        .label("Prometheus")
        .description(what)
        .type("prometheus")
    )
    what = "Namespace of the release; choose All outside Kubernetes"
    yield _query("namespace", "Namespace", what, "label_values(xcray_jobs, namespace)")
    if board.by_replica:
        what = "One serving replica or all of them; store metrics do not depend on it"
        yield _query(
            "instance",
            "Replica",
            what,
            f"label_values(xcray_http_requests_in_progress{{{HERE}}}, instance)",
        )
    if board.pods:
        what = "One Ray cluster, also of a RayJob or RayService; choose All outside Kubernetes"
        yield _query(
            "ray",
            "Ray cluster",
            what,
            f"label_values(ray_node_cpu_count{{{HERE}}}, ray_io_cluster)",
        )
        what = "Regular expression that matches the names of the release's pods"
        yield (
            dashboard.TextBoxVariable("pods")
            .label("Pods")
            .description(what)
            .default_value(".*xcray.*")
        )


def _query(name: str, label: str, what: str, query: str) -> dashboard.QueryVariable:
    """Build a variable with values from Prometheus.

    All means `.*`, which also matches series without the label.
    """
    out = (
        dashboard.QueryVariable(name).label(label).description(what).datasource(SOURCE).query(query)
    )
    out.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        models.VariableSort.ALPHABETICAL_ASC
    )
    everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return out.multi(True).include_all(True).all_value(".*").current(everything)
