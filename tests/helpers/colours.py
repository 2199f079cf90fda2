"""How light colours are, and how well one can be told from another (WCAG 2)."""

from matplotlib.colors import to_rgb


def luminance(colour):
    """Relative luminance of a colour in sRGB, from 0 to 1."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """From 1, for the same colour, to 21, for black and white."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
