"""People in the Open Peeps style: what a caption tells of one, how one is drawn, and what reads it back."""
