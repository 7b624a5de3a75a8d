"""What can be read off the law's text: its symmetry, what a term can be, what it is in fewer words."""
