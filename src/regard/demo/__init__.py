"""The demonstration `regard demo`: from nothing to a model that answers questions."""

from regard.demo.run import TRAINED_KINDS, Demo, DemoFolder, DemoSettings, demo

__all__ = ["TRAINED_KINDS", "Demo", "DemoFolder", "DemoSettings", "demo"]
