"""Makes, feeds, breaks and removes the cluster that demo, e2e tests and benchmarks run on.

`python -m tests.cluster <verb>` is what the Makefile calls; tests import the modules. In reading order:

    config        names, versions and folders, all derived from the checkout and the lock files
    proc          the one way to start another program
    go, tools     Kubernetes, etcd, CoreDNS, kind and Helm built from the Go modules in go/
    debian        packages of the machine, installed where they are missing
    engine        docker or podman, whichever works; podman is installed where neither does
    rootfs        what images stand on where no image registry can be reached
    node_image    the kind node image, pulled or built
    kind, cni     the three-node cluster itself; health says in what state it is
    images, load  our own images: built, and brought into the nodes
    install       all of it, with the operator: where demo, e2e tests and benchmarks begin
    faults        a node loses power, a rank is killed
    kwok          thousands of nodes that only pretend, for benchmarks
"""
