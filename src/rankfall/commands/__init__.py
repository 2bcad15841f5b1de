"""One file a verb of the command line. Only functions import torch, so that help never waits for it."""
