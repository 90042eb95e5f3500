"""Files of tests for promtool, made from the cases of alert_cases.py. Units: minutes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from alert_cases import CASES, Case

_SHORT: Final = 20


@dataclass(frozen=True, slots=True)
class PromtoolTests:
    """Files of tests for promtool.

    Args:
        rules: path of the rules, as promtool opens it.
        alerts: alerts in it by name.
    """

    rules: str
    alerts: Mapping[str, Mapping[str, Any]]

    def documents(self) -> Iterator[dict[str, object]]:
        """Yield the content of two files: of short cases, and of long cases with less frequent evaluations."""
        for interval, cases in (
            ("1m", [case for case in CASES if case.at <= _SHORT]),
            ("5m", [case for case in CASES if case.at > _SHORT]),
        ):
            yield {"rule_files": [self.rules], "evaluation_interval": interval, "tests": list(self._tests(cases))}

    def _tests(self, cases: Sequence[Case]) -> Iterator[dict[str, object]]:
        for case in cases:
            for series, fires in ((case.fires, True), (case.silent, False)):
                rule = self.alerts[case.alert]
                alert = {
                    "exp_labels": {**case.labels, **rule["labels"]},
                    "exp_annotations": {**rule["annotations"], "summary": case.summary},
                }
                yield {
                    "name": f"{case.alert} {'fires' if fires else 'is silent'}",
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in series.items()],
                    "alert_rule_test": [
                        {
                            "eval_time": f"{case.at}m",
                            "alertname": case.alert,
                            "exp_alerts": [alert] if fires else [],
                        }
                    ],
                }
