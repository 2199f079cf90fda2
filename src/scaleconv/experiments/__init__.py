"""The experiments of the paper, and training on images of your own: settings, runs, records, tables, figures."""
