#!/usr/bin/env python3
"""Simulate a small solvated protein with OpenMM and write a trajectory that grows frame by frame.

The system is the villin headpiece in explicit water (8,867 atoms) that the OpenMM package carries
as its own test structure: Amber99SB, TIP3P, particle-mesh Ewald, 300 K. The code knows nothing of
Zazen: it writes `topology.pdb` and `md.dcd`. With `--files` every frame is a file of its own
instead, `frame-0000000.dcd`, `frame-0000001.dcd`, ... (under a hidden name first, then renamed into
place, so that nobody ever sees half a frame). Beside it, `zazen push --watch DIR --nodes nodes.txt`
sends each frame to some node's disk.

    python examples/simulate_peptide.py --out /lustre/villin --frames 300

What does being watched cost the simulation? With `--compare DIR` every second block of frames is
computed twice from the same checkpoint, once written into `--out` and once into DIR, which nobody
watches, in alternating order; the report gives the median of the ratios of their times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

FRAME_NAME = "frame-{:07d}.dcd"
TRAJECTORY_NAME = "md.dcd"
DONE_NAME = "simulation.done"
# A pushed frame is on its way for some milliseconds after it was written: this pause keeps it out
# of the time of the next, unwatched block.
SETTLE_S = 0.05


class Simulation:
    """The villin headpiece in water on OpenMM's CPU platform."""

    def __init__(self, threads: int, seed: int) -> None:
        import openmm
        from openmm import app, unit

        self._app, self._unit = app, unit
        source = Path(app.__file__).parent / "data" / "test.pdb"
        if not source.exists():
            raise SystemExit(f"simulate_peptide: {source}: not in this OpenMM package; install openmm >= 8.1")
        pdb = app.PDBFile(str(source))
        system = app.ForceField("amber99sb.xml", "tip3p.xml").createSystem(
            pdb.topology,
            nonbondedMethod=app.PME,
            nonbondedCutoff=0.9 * unit.nanometer,
            constraints=app.HBonds,
            # Heavier hydrogens allow a time step of 4 fs: more motion per second of computing.
            hydrogenMass=3 * unit.amu,
        )
        self.timestep = 0.004 * unit.picoseconds
        integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 1 / unit.picosecond, self.timestep)
        integrator.setRandomNumberSeed(seed)
        platform = openmm.Platform.getPlatformByName("CPU")
        self._simulation = app.Simulation(
            pdb.topology, system, integrator, platform, {"Threads": str(threads)}
        )
        self.topology = pdb.topology
        self._context = self._simulation.context
        self._context.setPositions(pdb.positions)
        self._seed = seed

    def relax(self) -> None:
        """Remove bad contacts and take up the temperature."""
        unit = self._unit
        self._simulation.minimizeEnergy(maxIterations=15)
        self._context.setVelocitiesToTemperature(300 * unit.kelvin, self._seed)
        integrator = self._simulation.integrator
        integrator.setStepSize(0.001 * unit.picoseconds)
        integrator.step(40)
        integrator.setStepSize(self.timestep)

    def step(self, steps: int) -> None:
        self._simulation.integrator.step(steps)

    def checkpoint(self) -> bytes:
        return self._context.createCheckpoint()

    def restore(self, checkpoint: bytes) -> None:
        self._context.loadCheckpoint(checkpoint)

    def write_topology(self, path: Path) -> None:
        positions = self._context.getState(getPositions=True).getPositions()
        with open(path, "w") as file:
            self._app.PDBFile.writeFile(self.topology, positions, file, keepIds=True)

    def dcd(self, file: BinaryIO, first_step: int, interval: int = 1) -> Any:
        """OpenMM's writer of DCD."""
        return self._app.DCDFile(file, self.topology, self.timestep, firstStep=first_step, interval=interval)

    def write_frame(self, dcd: Any) -> None:
        """Append the present positions."""
        state = self._context.getState(getPositions=True)
        dcd.writeModel(state.getPositions(asNumpy=True), periodicBoxVectors=state.getPeriodicBoxVectors())


class FrameFiles:
    """Every frame is a DCD file of its own."""

    def __init__(self, simulation: Simulation, folder: Path, steps: int) -> None:
        self._simulation, self._folder, self._steps = simulation, folder, steps

    def write(self, number: int) -> int:
        """Write the present positions as this frame; return its size in bytes."""
        path = self._folder / FRAME_NAME.format(number)
        hidden = path.with_name(f".{path.name}.part")
        with open(hidden, "w+b") as file:
            self._simulation.write_frame(self._simulation.dcd(file, number * self._steps))
            size = file.seek(0, os.SEEK_END)
        os.rename(hidden, path)
        return size

    def forget(self, first: int, count: int) -> None:
        """Remove frames."""
        for number in range(first, first + count):
            (self._folder / FRAME_NAME.format(number)).unlink()


class Trajectory:
    """All frames are in one DCD file, which grows."""

    def __init__(self, simulation: Simulation, folder: Path, steps: int) -> None:
        self._simulation, self._path, self._steps = simulation, folder / TRAJECTORY_NAME, steps
        self._file: BinaryIO | None = None

    def write(self, number: int) -> int:
        """Append the present positions; return how many bytes the frame has."""
        if self._file is None:
            self._file = open(self._path, "w+b")
            self._dcd = self._simulation.dcd(self._file, number * self._steps, self._steps)
        before = self._file.seek(0, os.SEEK_END)
        self._simulation.write_frame(self._dcd)
        self._file.flush()
        return self._file.seek(0, os.SEEK_END) - before

    def forget(self, first: int, count: int) -> None:
        """Remove the file; the next frame begins another one."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._path.unlink()


class Progress:
    """One line on stderr: redrawn on a terminal, a new one every tenth elsewhere."""

    def __init__(self, frames: int) -> None:
        self._frames, self._started, self._said = frames, time.monotonic(), -1
        self._tty = sys.stderr.isatty()

    def say(self, done: int) -> None:
        tenth = done * 10 // self._frames
        if not self._tty and tenth == self._said:
            return
        self._said = tenth
        elapsed = time.monotonic() - self._started
        left = elapsed / done * (self._frames - done) if done else 0.0
        text = f"simulate: {done}/{self._frames} frames, {elapsed:.0f} s, about {left:.0f} s left"
        end = "\n" if not self._tty or done == self._frames else ""
        print(f"\r\x1b[K{text}" if self._tty else text, end=end, file=sys.stderr, flush=True)


Output = FrameFiles | Trajectory


def run_block(
    simulation: Simulation, output: Output, first: int, count: int, steps: int
) -> tuple[float, int]:
    """Write `count` frames to `output`, `steps` time steps after each; return (seconds, frame
    size)."""
    frame_bytes = 0
    started = time.perf_counter()
    for number in range(first, first + count):
        frame_bytes = output.write(number)
        simulation.step(steps)
    return time.perf_counter() - started, frame_bytes


def compared_block(
    simulation: Simulation,
    outputs: tuple[Output, Output],
    watched: Output,
    first: int,
    count: int,
    steps: int,
) -> tuple[float, int]:
    """Compute one block twice from the same state; return (time watched / time unwatched, frame
    bytes)."""
    checkpoint = simulation.checkpoint()
    seconds = {}
    frame_bytes = 0
    for output in outputs:
        simulation.restore(checkpoint)
        time.sleep(SETTLE_S)
        seconds[output], frame_bytes = run_block(simulation, output, first, count, steps)
        if output is watched:
            after = simulation.checkpoint()
    simulation.restore(after)
    (unwatched,) = set(outputs) - {watched}
    unwatched.forget(first, count)
    return seconds[watched] / seconds[unwatched], frame_bytes


def simulate(arguments: argparse.Namespace) -> dict:
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if arguments.compare:
        arguments.compare.mkdir(parents=True, exist_ok=True)
    (out / DONE_NAME).unlink(missing_ok=True)

    simulation = Simulation(arguments.threads, arguments.seed)
    print("simulate: villin headpiece in water, relaxing", file=sys.stderr, flush=True)
    simulation.relax()
    simulation.write_topology(out / "topology.pdb")

    kind = FrameFiles if arguments.files else Trajectory
    watched = kind(simulation, out, arguments.steps)
    unwatched = kind(simulation, arguments.compare, arguments.steps) if arguments.compare else None
    progress = Progress(arguments.frames)
    ratios: list[float] = []
    frame_bytes = 0
    started = time.perf_counter()
    for block, first in enumerate(range(0, arguments.frames, arguments.block)):
        count = min(arguments.block, arguments.frames - first)
        if unwatched and block % 2 == 1 and count == arguments.block:
            outputs = (watched, unwatched) if len(ratios) % 2 else (unwatched, watched)
            ratio, frame_bytes = compared_block(simulation, outputs, watched, first, count, arguments.steps)
            ratios.append(ratio)
        else:
            _, frame_bytes = run_block(simulation, watched, first, count, arguments.steps)
        progress.say(first + count)
    seconds = time.perf_counter() - started
    (out / DONE_NAME).touch()

    report = {
        "frames": arguments.frames,
        "frame_bytes": frame_bytes,
        "atoms": simulation.topology.getNumAtoms(),
        "steps_per_frame": arguments.steps,
        "seconds": round(seconds, 3),
        "compared_blocks": len(ratios),
        "slowdown_percent": None,
    }
    if ratios:
        percents = sorted(100 * (ratio - 1) for ratio in ratios)
        report["slowdown_percent"] = round(statistics.median(percents), 2)
        report["slowdown_percent_range"] = [round(percents[0], 2), round(percents[-1], 2)]
    return report


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the dataset (made if missing)")
    parser.add_argument("--files", action="store_true", help="every frame is a file of its own")
    parser.add_argument("--frames", type=int, default=300, help="frames to write (default 300)")
    parser.add_argument("--steps", type=int, default=4, help="time steps of 4 fs per frame (default 4)")
    parser.add_argument("--block", type=int, default=4, help="frames per timed block (default 4)")
    parser.add_argument("--threads", type=int, default=1, help="threads of OpenMM (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of velocities and thermostat (default 1)")
    parser.add_argument(
        "--compare", type=Path, metavar="DIR", help="measure the cost of being watched; DIR is not watched"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what was done as JSON")
    parsed = parser.parse_args(arguments)
    if min(parsed.frames, parsed.steps, parsed.block, parsed.threads) < 1:
        parser.error("--frames, --steps, --block and --threads must be at least 1")
    return parsed


def main() -> None:
    arguments = parse()
    try:
        report = simulate(arguments)
    except ImportError as error:
        sys.exit(f"simulate_peptide: {error.name}: not installed; pip install openmm numpy")
    text = json.dumps(report)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
