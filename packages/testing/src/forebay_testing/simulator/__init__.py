"""The simulator: the protocol's own code, played by actors of which one runs at a time.

A seed decides who makes the next request, what fails, who dies and when time passes. An oracle
knows what each version has to hold. `playing.play` plays one seed.
"""
