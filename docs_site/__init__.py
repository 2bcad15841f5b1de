"""What the documentation site adds to the pages in docs/: see `docs_site.build`."""
