"""The report as an HTML page: view model, words, advice and plots; the templates are in ``html``.

Start with ``render``.
"""
