"""What several tests of the experiments share."""
