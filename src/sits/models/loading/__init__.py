"""Loading models: ``load_model(name)`` is the way in."""

from sits.models.loading.load import LoadedModel, load_model, open_source
from sits.models.loading.resolve import ModelLocation, resolve

__all__ = ["LoadedModel", "ModelLocation", "load_model", "open_source", "resolve"]
