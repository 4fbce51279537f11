"""What several doors ask about tasks: results, why one waits, attempts, workers, who steered."""
