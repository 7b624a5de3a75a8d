"""Where the findings of a followed history go: files, a webhook, and Prometheus."""
