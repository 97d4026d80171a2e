"""The Open Inference Protocol, version 2, over the same desk and the same models as /v1: requests of tensors, replies of tensors.

Source: https://github.com/kserve/open-inference-protocol (inference_rest.md, open_inference_rest.yaml), and the extensions for
binary tensors and model repositories as Triton's documentation describes them.
"""
