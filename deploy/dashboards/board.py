"""What dashboards are made of: queries, panels, rows; and how they become Grafana's JSON, by Grafana's own foundation SDK.

Whose a figure is decides how it is asked. Figures of the store are the same from every replica: `store` and `store_rate` take one
(max). Figures of a replica are added up: `replica` and `replica_rate`. See docs/observing.md.
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
    "xcray-serving": "xcray / Serving",
    "xcray-cluster": "xcray / Cluster",
}
GOOD, FAIR, BAD, PLAIN = "green", "orange", "red", "text"
Steps = Sequence[tuple[float | None, str]]  # from which value on which colour; the first from None


@dataclass(frozen=True)
class Query:
    """A question in PromQL, and what its series are called: text with {{label}} in it."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. what: its description, for who sees it first; unit: of Grafana's; steps: colours by value; stack, bars: of
    graphs; number: one number instead of a graph."""

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
        """Width and height on the grid."""
        width, height = NUMBER if self.number else GRAPH
        return self.width or width, height


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A dashboard. by_replica: whether it has a variable for replicas; pods: whether it has those for Ray clusters and for pods."""

    uid: str
    what: str
    rows: tuple[Row, ...]
    by_replica: bool = False
    pods: bool = False


def graph(title: str, what: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """A graph of (expression, legend) pairs."""
    return Panel(title, what, tuple(Query(*each) for each in queries), **more)


def number(
    title: str,
    what: str,
    expr: str,
    unit: str = "short",
    steps: Steps = ((None, PLAIN),),
    **more: Any,
) -> Panel:
    """One number, as it is now, above its course."""
    return Panel(
        title, what, (Query(expr, title.lower()),), unit=unit, steps=steps, number=True, **more
    )


def store(name: str, *by: str, where: str = "") -> str:
    """A figure of the store: one of those that replicas tell, for they tell the same."""
    return f"max{_by(by)}({name}{{{_and(HERE, where)}}})"


def store_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """How fast a counter of the store rises, a second."""
    return f"max{_by(by)}(rate({name}{{{_and(HERE, where)}}}[{window}]))"


def store_rise(name: str, *by: str, where: str = "", window: str = "$__range") -> str:
    """How much a counter of the store rose."""
    return f"max{_by(by)}(increase({name}{{{_and(HERE, where)}}}[{window}]))"


def replica(name: str, *by: str, where: str = "", how: str = "sum") -> str:
    """A figure of replicas, added up, or `how` else."""
    return f"{how}{_by(by)}({name}{{{_and(ONE, where)}}})"


def replica_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """How fast a counter of replicas rises, all together, a second."""
    return f"sum{_by(by)}(rate({name}{{{_and(ONE, where)}}}[{window}]))"


def quantile(q: float, name: str, *by: str, of_store: bool = False, where: str = "") -> str:
    """A quantile of a histogram, over all replicas or `by` some label."""
    rates = (store_rate if of_store else replica_rate)(f"{name}_bucket", "le", *by, where=where)
    return f"histogram_quantile({q}, {rates})"


CLUSTER: Final = 'ray_io_cluster=~"$ray"'  # of boards with `pods`; the chart's monitors write this label on all series of Ray


def ray(name: str, *by: str, where: str = "", how: str = "sum") -> str:
    """A figure of Ray's own, or of Kubernetes, over its nodes."""
    return f"{how}{_by(by)}({name}{{{_and(HERE, where)}}})"


def ray_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """How fast a counter of Ray's own rises, over its nodes, a second."""
    return f"sum{_by(by)}(rate({name}{{{_and(HERE, where)}}}[{window}]))"


def share(part: str, whole: str) -> str:
    """Part of a whole, where there is any."""
    return f"{part} / ({whole} > 0)"


def _by(labels: Sequence[str]) -> str:
    """The grouping of an aggregation."""
    return f" by ({', '.join(labels)}) " if labels else " "


def _and(*conditions: str) -> str:
    """Label matchers together."""
    return ",".join(each for each in conditions if each)


def written(board: Board) -> str:
    """A dashboard's JSON, as it lies in the chart."""
    text = json.dumps(
        _built(board).build(), cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False
    )
    return text + "\n"


def _built(board: Board) -> dashboard.Dashboard:
    """The whole dashboard."""
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
    """Panels with their x and y: from left to right, a new line where one is full, numbers and graphs not in the same."""
    x, y, height = 0, top, 0
    for panel in panels:
        if x + panel.size[0] > WIDTH or (height and panel.size[1] != height):
            x, y = 0, y + height
        yield panel, x, y
        x, height = x + panel.size[0], panel.size[1]


def _panel(panel: Panel) -> Any:
    """One panel as the SDK has it."""
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
    """A number, coloured by its value."""
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields("")
    out = stat.Panel().reduce_options(reduced).graph_mode(kinds.BigValueGraphMode.AREA)
    out.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    return out.color_mode(kinds.BigValueColorMode.VALUE).text_mode(kinds.BigValueTextMode.VALUE)


def _graph(panel: Panel) -> timeseries.Panel:
    """Lines, areas or bars over time."""
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
    """What can be chosen above the panels: where the figures come from, and whose they are."""
    what = "The Prometheus that scrapes xcray and Ray"
    yield (
        dashboard.DatasourceVariable("datasource")
        .label("Prometheus")
        .description(what)
        .type("prometheus")
    )
    what = (
        "Kubernetes' namespace of the release; outside Kubernetes there is none, and All is right"
    )
    yield _query("namespace", "Namespace", what, "label_values(xcray_jobs, namespace)")
    if board.by_replica:
        what = "One process that answers, or all of them; figures of the store do not depend on it"
        yield _query(
            "instance",
            "Replica",
            what,
            f"label_values(xcray_http_requests_under_way{{{HERE}}}, instance)",
        )
    if board.pods:
        what = "One Ray cluster, also of a RayJob or RayService; outside Kubernetes they have no names, and All is right"
        yield _query(
            "ray",
            "Ray cluster",
            what,
            f"label_values(ray_node_cpu_count{{{HERE}}}, ray_io_cluster)",
        )
        what = "A regular expression that the names of the release's pods match"
        yield (
            dashboard.TextBoxVariable("pods")
            .label("Pods")
            .description(what)
            .default_value(".*xcray.*")
        )


def _query(name: str, label: str, what: str, query: str) -> dashboard.QueryVariable:
    """A variable whose values Prometheus knows. All means `.*`, which series without the label match too."""
    out = (
        dashboard.QueryVariable(name).label(label).description(what).datasource(SOURCE).query(query)
    )
    out.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        models.VariableSort.ALPHABETICAL_ASC
    )
    everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return out.multi(True).include_all(True).all_value(".*").current(everything)
