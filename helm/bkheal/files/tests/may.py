"""The Spark driver may do what it needs in its namespace, and nothing more. Argument: the namespace."""

# ruff: noqa: D103, S310, T201
import json
import ssl
import sys
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REVIEWS = "https://kubernetes.default.svc/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MAY = [
    ("create", "pods"),
    ("watch", "pods"),
    ("deletecollection", "pods"),
    ("create", "configmaps"),
    ("delete", "services"),
]
MAY_NOT = [("get", "secrets"), ("create", "deployments"), ("update", "roles"), ("create", "serviceaccounts")]
GROUPS = {"deployments": "apps", "roles": "rbac.authorization.k8s.io"}
namespace = sys.argv[1]
context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}


def may(verb: str, resource: str, where: str) -> bool:
    attributes = {"namespace": where, "verb": verb, "resource": resource, "group": GROUPS.get(resource, "")}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    request = urllib.request.Request(REVIEWS, json.dumps(review).encode(), headers)
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        return bool(json.load(answer)["status"]["allowed"])


wrong = [f"may not {verb} {what}" for verb, what in MAY if not may(verb, what, namespace)]
wrong += [f"may {verb} {what}" for verb, what in MAY_NOT if may(verb, what, namespace)]
wrong += [f"may {verb} {what} elsewhere" for verb, what in MAY if may(verb, what, "kube-system")]
if wrong:
    sys.exit("; ".join(wrong))
print("as it should be")
