"""Charts as SVG elements: the one way of drawing for report, compare, view and the live page.

A chart has no fixed width: places along x are percentages and places along y are pixels, so letters keep their size
and everything stays visible on a narrow screen.  Colours are CSS variables, which the reader's theme sets.  A mark with
a ``data-tip`` is explained on hover and by the arrow keys; ``draw.js`` does both.
"""
