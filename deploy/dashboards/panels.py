"""The kinds of panel that the boards are made of.

Owns what they share: every panel has a unit and a description, every query goes to the board's `$datasource`, and a job
is chosen by `$namespace` and `$rljob`.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    GraphGradientMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")
JOB = 'namespace=~"$namespace",rljob=~"$rljob"'
"""Label matchers of the chosen jobs."""

EVENTS = {
    "Restarts": "{{rljob}}: another epoch",
    "Versions": "{{rljob}}: another version",
    "Losses": "{{rljob}}: {{role}} lost on {{node}}, by {{owner}}",
}
"""What a mark of each annotation says, made of the labels of its series. The SDK's builder has no such field."""

Query = tuple[str, str]
"""PromQL, and the legend of its series."""


def board(uid: str, title: str, description: str, *, jobs: bool = True, refresh: str = "30s") -> dashboard.Dashboard:
    """An empty board; with `jobs`, one that is about the jobs chosen above it."""
    links = dashboard.DashboardLink("AReaL").type(DashboardLinkType.DASHBOARDS).tags(["areal"]).as_dropdown(True)
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["areal"])
        .refresh(refresh)
        .time("now-3h", "now")
        .timezone("browser")
        .readonly()
        .link(links.keep_time(True).include_vars(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    if jobs:
        made = made.with_variable(_choice("namespace", "Namespace", "label_values(areal_rljob_condition, namespace)"))
        names = 'label_values(areal_rljob_condition{namespace=~"$namespace"}, rljob)'
        made = made.with_variable(_choice("rljob", "Job", names))
        made = made.annotation(_event("Restarts", f"changes(areal_rljob_epoch{{{JOB}}}[1m]) > 0", "red"))
        versions = _event("Versions", f"changes(areal_trainer_policy_version{{{JOB}}}[1m]) > 0", "blue")
        made = made.annotation(versions.enable(False))  # with quick steps a line would stand at each moment
        lost = f"time() - areal_rljob_loss_timestamp_seconds{{{JOB}}} < 60"
        made = made.annotation(_event("Losses", lost, "orange"))
    return made


def graph(title: str, description: str, unit: str, *queries: Query, limit: float | None = None) -> timeseries.Panel:
    """Lines over time; `limit` draws a red line where things get bad."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .height(8)
        .span(8)
        .fill_opacity(8)
        .gradient_mode(GraphGradientMode.NONE)
        .legend(legend.show_legend(True))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if limit is not None:
        steps = [Threshold(color="transparent", value=None), Threshold(color="red", value=limit)]
        panel = panel.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.LINE))
    for index, (expression, name) in enumerate(queries):
        panel = panel.with_target(_query(expression, name, index))
    return panel


def number(title: str, description: str, unit: str, query: Query, *, bad_above: float | None = None) -> stat.Panel:
    """One figure, red above `bad_above`."""
    steps = [Threshold(color="green", value=None)]
    if bad_above is not None:
        steps.append(Threshold(color="red", value=bad_above))
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .height(4)
        .span(4)
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .with_target(_query(*query, 0))
    )


def rows(title: str, description: str, unit: str, *queries: Query) -> table.Panel:
    """A table with a row a series: the newest values, joined by their labels."""
    panel = table.Panel().title(title).description(description).unit(unit).datasource(SOURCE).height(9).span(24)
    for index, (expression, name) in enumerate(queries):
        panel = panel.with_target(_query(expression, name, index).instant().format(PromQueryFormat.TABLE))
    hidden = {"Time": True, "__name__": True}
    renamed = {f"Value #{chr(65 + index)}": name for index, (_, name) in enumerate(queries)}
    if len(queries) == 1:
        renamed["Value"] = queries[0][1]
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    organised = {"excludeByName": hidden, "renameByName": renamed}
    return panel.with_transformation(DataTransformerConfig(id_val="organize", options=organised))


def _query(expression: str, name: str, index: int) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(expression).legend_format(name).ref_id(chr(65 + index))
    return query.datasource(SOURCE)


def _event(name: str, expression: str, colour: str) -> dashboard.AnnotationQuery:
    """A mark on all graphs when the expression holds."""
    query = dashboard.AnnotationQuery().name(name).datasource(SOURCE).expr(expression).icon_color(colour)
    return query.enable(True)


def _choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
    )
