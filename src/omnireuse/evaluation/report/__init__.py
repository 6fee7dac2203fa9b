"""What a person looks at: how close images are, what was compared, and the page and pictures that show it."""
