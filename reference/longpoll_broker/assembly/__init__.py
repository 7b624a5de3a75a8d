"""Creates and connects the services of a broker, one module per group of services.

Each service declares its codes and its needs. This package decides which services exist under a policy and a
configuration, their order, and whether those of `fast` replace the plain ones.
"""
