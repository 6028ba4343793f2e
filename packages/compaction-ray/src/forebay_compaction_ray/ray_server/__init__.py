"""What carries gateway and workers on Ray. Imported by the server only; needs the extra."""
