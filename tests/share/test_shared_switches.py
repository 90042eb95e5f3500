"""Switches reach every gateway, those that start later included, and survive the loss of the engine."""

from gateway.share.sync import SwitchExchange
from switching_hub import SwitchingHub

PERIOD_S = 0.1


class Gateways:
    """Gateways that exchange only switches."""

    def __init__(self, count: int) -> None:
        self.hub = SwitchingHub()
        self.values: list[dict[str, str]] = []
        self.switches: list[SwitchExchange] = []
        self.now_s = 0.0
        for _ in range(count):
            self.join()

    def join(self) -> None:
        """Add a gateway."""
        values: dict[str, str] = {}
        self.values.append(values)
        self.switches.append(SwitchExchange(values.__setitem__))

    def run(self, lasts_s: float) -> None:
        """Exchange for a while."""
        end_s = self.now_s + lasts_s
        while self.now_s < end_s:
            for number, switches in enumerate(self.switches):
                if asks := switches.asks(self.now_s, PERIOD_S):
                    switches.answered(self.hub.answer(self.now_s, str(number), asks).answers, self.now_s)
            self.now_s += PERIOD_S


def test_a_switch_reaches_all_within_a_second() -> None:
    """All but the gateway that was switched, which has applied it itself."""
    gateways = Gateways(5)
    gateways.run(1.0)
    gateways.switches[2].publish("hedging", "off")
    gateways.run(0.95)
    assert gateways.values == [{"hedging": "off"}] * 2 + [{}] + [{"hedging": "off"}] * 2
    gateways.run(1.0)
    assert gateways.switches[2].reached == 5


def test_the_last_switch_counts_also_for_a_newcomer() -> None:
    """Whoever switched."""
    gateways = Gateways(2)
    gateways.switches[0].publish("hedging", "off")
    gateways.run(1.0)
    gateways.switches[1].publish("hedging", "on")
    gateways.run(1.0)
    gateways.join()
    gateways.run(1.0)
    assert gateways.values == [{"hedging": "on"}, {"hedging": "off"}, {"hedging": "on"}]


def test_a_lost_engine_gets_the_switches_again() -> None:
    """A gateway that starts after the loss has the switch."""
    gateways = Gateways(2)
    gateways.run(1.0)
    gateways.switches[0].publish("hedging", "off")
    gateways.run(1.0)
    gateways.hub = SwitchingHub()
    gateways.run(1.5)
    gateways.join()
    gateways.run(1.0)
    assert gateways.values[2] == {"hedging": "off"}


def test_a_lost_reply_is_sent_again() -> None:
    """A switch waits until it is acknowledged."""
    gateways = Gateways(2)
    gateways.switches[0].publish("hedging", "off")
    assert gateways.switches[0].asks(0.0, PERIOD_S)  # no reply
    gateways.run(1.0)
    assert gateways.values[1] == {"hedging": "off"}
