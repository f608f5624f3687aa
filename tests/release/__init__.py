"""Pushes what users install to a registry: both images and the chart; `make release` calls it.

__main__     the order of the steps
registry     images and the chart: labelled, pushed, with their digests
bom          what is in an image: a CycloneDX document, and the licences
files        wheels, checksums
signatures   of the checksums, with a key of your own
environment  the Python packages that only these steps need
"""
