"""What several tests share: loop references, tolerances, small inputs, and records made by hand."""
