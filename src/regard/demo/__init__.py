"""The main job, from nothing to answers: what `regard demo` runs."""

from regard.demo.run import KINDS, Demo, DemoSettings, demo

__all__ = ["KINDS", "Demo", "DemoSettings", "demo"]
