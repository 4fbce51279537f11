"""Who holds what: the fence, renewal, and what a holder has in hand."""
