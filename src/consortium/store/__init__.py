"""Where facts and blobs are kept: two ports, and the backends behind them."""
