"""Open Inference Protocol, version 2: tensor requests and replies over the models of /v1.

Source: https://github.com/kserve/open-inference-protocol (inference_rest.md,
open_inference_rest.yaml), and the extensions for binary tensors and model repositories as described
in Triton's documentation.
"""
