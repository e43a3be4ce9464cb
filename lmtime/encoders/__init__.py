"""The study of compressed encoders: which sub-network is Pareto-optimal on a task and a device?

    plans, measuring, latency_rows   what is timed; timing it; what a row is compared by
    depth, hat                       latency against depth, here and in HAT's tables
    supernets, score_rows            one network for every width and depth; its scores
    published_scores                 DynaBERT's scores of BERT-base on GLUE
    fronts, front_facts,
    device_fronts                    which sub-network, and whether that changes with the device
    layer_latency, searches, exports a predictor, the search layer by layer, a network to deploy

Networks and their training stand in `lmtime/models/`, what a front is in `lmtime/pareto/`.
"""
