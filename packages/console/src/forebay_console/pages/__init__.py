"""The pages: what a browser asks for, and who may ask.

`application` is the whole site. A module of this room makes what one template shows, from what
`forebay_console.watching` knows and with the plots of `forebay_console.charts`.
"""

from forebay_console.pages.access import Access
from forebay_console.pages.site import application

__all__ = ["Access", "application"]
