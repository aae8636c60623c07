"""A versioned catalog whose history is cut once no node needs it any more (Apache Ignite 3; `seeds/catalog.md`)."""

__all__: list[str] = []
