"""The main job, from nothing to answers: what `regard demo` runs."""

from regard.demo.run import TRAINED_KINDS, Demo, DemoFolder, DemoSettings, demo

__all__ = ["TRAINED_KINDS", "Demo", "DemoFolder", "DemoSettings", "demo"]
