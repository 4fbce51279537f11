"""The rows of the fair order, and how edits of shares and limits reach them."""
