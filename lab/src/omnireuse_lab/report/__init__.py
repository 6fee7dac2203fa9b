"""Results for people: the page of a comparison and its pictures."""
