"""Demos of paddle-ngraph on real data; see the README.md in each folder."""

import os
import warnings

# Paddle's notices at start-up would bury the few lines that the demos print.
os.environ.setdefault("GLOG_minloglevel", "2")
warnings.filterwarnings("ignore", message="No ccache found")
warnings.filterwarnings("ignore", message="Tensor do not have 'place' interface")
