"""Creates, loads, breaks and removes the cluster on which the demo, e2e tests and benchmarks run.

`python -m tests.cluster <verb>` is what the Makefile calls; tests import the modules. In reading order:

    config        names, versions and folders, all derived from the checkout and the lock files
    proc          starts other programs and reports progress
    go, tools     Kubernetes, etcd, CoreDNS, kind and Helm built from the Go modules in go/
    debian        installs missing Debian packages on this machine
    engine        docker or podman, whichever works; podman is installed if neither does
    rootfs        base images, built from Debian packages if no image registry is reachable
    node_image    the kind node image, pulled or built
    kind, cni     the four-node cluster itself; health decides what state it is in
    images, load  our own images: built, and loaded into the nodes
    install       all of the above and the operator: the demo, e2e tests and benchmarks start here
    faults        a node loses power, a rank is killed
    kwok          thousands of simulated nodes, for benchmarks
"""
