"""Results for people: the closeness of images in words and figures, and the page and pictures that show it."""
