"""The conformance kit: what authors of backends and storages test against."""
