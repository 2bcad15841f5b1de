"""``rankfall bench``: the cost of the library, compared with textbook code and with lower bounds."""

from __future__ import annotations

import typer

from rankfall.commands.bench import (
    functions,
    loading,
    process_scaling,
    sample_building,
    sample_cost,
    service_attack,
    service_load,
    service_loop,
    training_step,
)
from rankfall.commands.terminal import examples

app = typer.Typer(
    name="bench",
    epilog=examples(
        "rankfall bench ops",
        "rankfall bench ops --quick",
        "rankfall bench losses --sizes 100,1000,10000",
        "rankfall bench loader",
        "rankfall bench step --sizes 40,200",
        "rankfall bench prepare --rows 10000000",
        "rankfall bench scaling",
        "rankfall bench serve --keep bundles",
        "rankfall bench samples --keep bundles",
        "rankfall bench soak --minutes 10 --keep bundles",
        "rankfall bench attack --minutes 10 --keep bundles",
        "rankfall bench loop --minutes 10 --keep bundles",
        "rankfall bench ops --json > bench.json",
    ),
)


@app.callback()
def bench() -> None:
    """Measure the cost of operators, losses, training, data preparation and serving."""


app.command("ops", epilog=examples("rankfall bench ops --quick", "rankfall bench ops --json > bench.json"))(
    functions.ops
)
app.command("losses", epilog=examples("rankfall bench losses --sizes 100,1000,10000"))(functions.losses)
app.command("loader", epilog=examples("rankfall bench loader --quick"))(loading.loader)
app.command("step", epilog=examples("rankfall bench step --sizes 40,200"))(training_step.step)
app.command("prepare", epilog=examples("rankfall bench prepare --rows 10000000"))(sample_building.prepare)
app.command("scaling", epilog=examples("rankfall bench scaling --quick"))(process_scaling.scaling)
app.command("serve", epilog=service_load.SERVE_EXAMPLES)(service_load.serve)
app.command("samples", epilog=sample_cost.EXAMPLES)(sample_cost.samples)
app.command("soak", epilog=service_load.SOAK_EXAMPLES)(service_load.soak)
app.command("attack", epilog=service_attack.EXAMPLES)(service_attack.attack)
app.command("loop", epilog=service_loop.EXAMPLES)(service_loop.loop)
