"""Steps of training on more ranks than there are: a model of events, with measured inputs."""
