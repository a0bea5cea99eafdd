"""moto for the end-to-end tests, with its gaps closed.

moto 5.2.5 itself serves KMS, STS and instance metadata. SIMULATED here, because it does not:
key states (disabled, pending deletion), rotation on demand with old material kept, key material
ids, IncorrectKeyException, ciphertext of multi-region keys, checks of who calls (signatures, web
identity tokens, access keys, expired and revoked sessions) and, at /control, faults that a test
asks for.

usage: aws.py PORT
"""

import hashlib
import hmac
import io
import json
import logging
import sys
import threading
import time
from types import SimpleNamespace

from moto.core.exceptions import JsonRESTError
from moto.core.utils import unix_time
from moto.kms import models, responses, utils
from moto.kms.exceptions import InvalidCiphertextException
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.sts.exceptions import STSClientError
from moto.sts.models import STSBackend
from moto.sts.responses import TokenResponse
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

HARNESS = "harness"  # The access key of the tests' own calls: never checked, counted or failed.
ACCOUNT, REGION = "123456789012", "us-east-1"  # Of keys that are restored.
IMDS = "/latest/"
LOCK = threading.Lock()
LOCAL = threading.local()
STATE = {
    "faults": [],  # {operation, key, seconds, answer, status, type, message, times}; all may be left out
    "tokens": None,  # web identity tokens that are good; None: all
    "access_keys": None,  # access keys that are good beside those of sessions; None: all
    "secrets": {"test-key": "test-secret-key"},  # of access keys whose signatures are checked
    "session_seconds": None,  # how long a new session lasts; None: as long as was asked for
    "material_ids": True,  # whether KMS tells the ids of key material
}
SESSIONS = {}  # access key -> what is known of a session
CALLS = {}
LAST = {}


def wrap(owner, name):
    """Replaces a method by one that gets the original as its first argument."""
    original = getattr(owner, name)

    def replace(function):
        setattr(owner, name, lambda self, *args, **kw: function(original, self, *args, **kw))

    return replace


# --- key material, states and multi-region keys


def add_material(key, material):
    key.__dict__.setdefault("materials", []).append(material)  # A replica shares the list.


def material_id(key, material):
    return hashlib.sha256(key.id.encode() + material).hexdigest()


def multi_region_id(multi_region=False, original=models.generate_key_id):
    key_id = original(False)
    return "mrk-" + key_id.replace("-", "") if multi_region else key_id


models.Key.key_material = property(lambda key: key.materials[-1], add_material)
models.generate_key_id = multi_region_id


def check_usable(key):
    if key.key_state == "Disabled":
        raise JsonRESTError("DisabledException", f"{key.arn} is disabled.")
    if key.key_state != "Enabled":
        state = {"PendingDeletion": "pending deletion"}.get(key.key_state, key.key_state)
        raise JsonRESTError("KMSInvalidStateException", f"{key.arn} is {state}.")


@wrap(models.Key, "to_dict")
def to_dict(original, self):
    document = original(self)
    if STATE["material_ids"]:
        document["KeyMetadata"]["CurrentKeyMaterialId"] = material_id(self, self.key_material)
    return document


@wrap(models.KmsBackend, "replicate_key")
def replicate_key(original, self, key_id, replica_region):
    return original(self, self.get_key_id(key_id), replica_region)


@wrap(models.KmsBackend, "rotate_key_on_demand")
def rotate_key_on_demand(original, self, key_id):
    self.keys[self.get_key_id(key_id)].key_material = utils.generate_master_key()
    return original(self, key_id)


@wrap(models.KmsBackend, "encrypt")
def encrypt(original, self, key_id, plaintext, encryption_context):
    check_usable(self.keys[self.any_id_to_key_id(key_id)])
    return original(self, key_id, plaintext, encryption_context)


@wrap(models.KmsBackend, "decrypt")
def decrypt(_, self, ciphertext_blob, encryption_context, key_id=None):
    try:
        key = self.keys[utils._deserialize_ciphertext_blob(ciphertext_blob).key_id]
    except Exception:
        raise InvalidCiphertextException()
    if key_id is not None and self.any_id_to_key_id(key_id) != key.id:
        text = "The key ID in the request does not identify a CMK that can perform this operation."
        raise JsonRESTError("IncorrectKeyException", text)
    check_usable(key)
    for material in reversed(key.materials):
        keys = {key.id: SimpleNamespace(key_material=material)}
        try:
            plaintext, _ = utils.decrypt(keys, ciphertext_blob, encryption_context)
        except InvalidCiphertextException:
            continue
        LOCAL.material = material_id(key, material)
        return plaintext, key.arn
    raise InvalidCiphertextException()


@wrap(responses.KmsResponse, "decrypt")
def decrypt_response(original, self):
    answer = json.loads(original(self))
    if STATE["material_ids"]:
        answer["KeyMaterialId"] = LOCAL.material
    return json.dumps(answer)


# --- who calls


@wrap(TokenResponse, "assume_role_with_web_identity")
def check_web_identity(original, self):
    token, good = self._get_param("WebIdentityToken"), STATE["tokens"]
    if not token:
        raise STSClientError("ValidationError", "Value null at 'webIdentityToken'")
    if good is not None and token not in good:
        raise STSClientError("InvalidIdentityToken", "The ID token is not valid (simulated)")
    LOCAL.token = token
    return original(self)


@wrap(STSBackend, "assume_role_with_web_identity")
def assume_role_with_web_identity(original, self, **asked):
    role = original(self, **{**asked, "duration": STATE["session_seconds"] or asked["duration"]})
    SESSIONS[role.access_key_id] = {
        "expiry": unix_time(role.expiration),
        "secrets": [role.secret_access_key, role.session_token],
        "token": LOCAL.token,
        "revoked": None,
    }
    return role


def refusal(access_key):
    if access_key is None:
        return "MissingAuthenticationTokenException", "Missing Authentication Token"
    if access_key in SESSIONS:
        session = SESSIONS[access_key]
        if session["revoked"] or session["expiry"] < time.time():
            text = "The security token included in the request is expired"
            return session["revoked"] or "ExpiredTokenException", text
    elif STATE["access_keys"] is not None and access_key not in STATE["access_keys"]:
        text = "The security token included in the request is invalid."
        return "UnrecognizedClientException", text
    return None


def bad_signature(request, access_key):
    """Signature Version 4, checked as AWS does it."""
    session = SESSIONS.get(access_key)
    secret, token = session["secrets"] if session else (STATE["secrets"].get(access_key), None)
    if secret is None:
        return None
    if token and request.headers.get("X-Amz-Security-Token") != token:
        text = "The security token included in the request is invalid."
        return "UnrecognizedClientException", text
    try:
        fields = request.headers["Authorization"].removeprefix("AWS4-HMAC-SHA256 ").split(",")
        fields = dict(field.strip().split("=", 1) for field in fields)
        names, date = fields["SignedHeaders"].split(";"), request.headers["X-Amz-Date"]
        scope = fields["Credential"].split("/", 1)[1]
        lines = [name + ":" + " ".join(request.headers[name].split()) for name in names]
    except KeyError as missing:
        return "IncompleteSignatureException", f"no {missing}"
    if not {"host", "x-amz-date", "x-amz-target"} <= set(names) or names != sorted(names):
        return "IncompleteSignatureException", f"only {names} are signed"
    digest = lambda data: hashlib.sha256(data).hexdigest()
    query = request.query_string.decode()
    body = digest(request.get_data())
    whole = "\n".join([request.method, request.path, query, *lines, "", ";".join(names), body])
    key = ("AWS4" + secret).encode()
    signed = "\n".join(["AWS4-HMAC-SHA256", date, scope, digest(whole.encode())])
    for part in [*scope.split("/"), signed]:
        key = hmac.digest(key, part.encode(), "sha256")
    if key.hex() != fields["Signature"] or not date.startswith(scope.split("/")[0]):
        return "InvalidSignatureException", "The request signature we calculated does not match"
    return None


# --- the server


def restore(id, materials):
    """A key that has been before, with its material from the oldest on."""
    kms = models.kms_backends[ACCOUNT][REGION]
    key = kms.create_key(None, "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "", None)
    kms.keys[id] = kms.keys.pop(key.id)
    key.arn, key.id = key.arn.replace(key.id, id), id
    key.materials = [bytes.fromhex(material) for material in materials]


def control(request):
    with LOCK:
        if request.method == "PUT":
            wanted = request.get_json(force=True)
            if "restore" in wanted:
                restore(**wanted["restore"])
            for session in SESSIONS.values() if "revoke" in wanted else []:
                if wanted.get("of", session["token"]) == session["token"]:
                    session["revoked"] = wanted["revoke"]
            STATE["secrets"].update(wanted.pop("secrets", {}))
            STATE.update({name: wanted[name] for name in STATE if name in wanted})
        body = {**STATE, "calls": CALLS, "sessions": SESSIONS, "last": LAST}
        return Response(json.dumps(body), content_type="application/json")


def fault_for(operation, key):
    for fault in STATE["faults"]:
        mine = fault.get("operation", operation) == operation and fault.get("key", "") in key
        if mine and fault.get("times", 1) > 0:
            if "times" in fault:
                fault["times"] -= 1
            return fault
    return {}


def error(operation, status, kind, message):
    if operation.startswith("Assume"):
        body = f"<ErrorResponse><Error><Type>Sender</Type><Code>{kind}</Code>"
        body += f"<Message>{message}</Message></Error></ErrorResponse>"
        return Response(body, status=status, content_type="text/xml")
    headers = {"x-amzn-requestid": "00000000-0000-4000-8000-000000000000"}
    body = json.dumps({"__type": kind, "message": message})
    return Response(body, status, headers, content_type="application/x-amz-json-1.1")


def judge(request, kms):
    """The answer that comes instead of moto's, if one does."""
    scope = request.headers.get("Authorization", "").partition("Credential=")[2]
    access_key = scope.split("/")[0] or None
    if access_key == HARNESS:
        return None
    body = request.get_data(parse_form_data=False)
    operation = kms or request.form.get("Action", "?")
    key = str(json.loads(body).get("KeyId", "")) if kms else ""
    with LOCK:
        CALLS[operation] = CALLS.get(operation, 0) + 1
        if kms:
            names = ["x-amz-source-arn", "x-amz-source-account"]
            LAST.update({name: request.headers.get(name) for name in names}, access_key=access_key)
        fault = fault_for(operation, key)
        refused = (refusal(access_key) or bad_signature(request, access_key)) if kms else None
    time.sleep(fault.get("seconds", 0))
    if "answer" in fault:
        return Response(json.dumps(fault["answer"]), content_type="application/x-amz-json-1.1")
    if "type" in fault:
        return error(operation, fault.get("status", 400), fault["type"], fault.get("message", ""))
    return error(operation, 400, *refused) if refused else None


def application(moto):
    def serve(environ, start_response):
        request = Request(environ)
        if request.path == "/control":
            return control(request)(environ, start_response)
        if request.path.startswith(IMDS):
            return metadata(request)(environ, start_response)
        kms = request.headers.get("X-Amz-Target", "").partition("TrentService.")[2]
        answer = judge(request, kms) if request.method == "POST" else None
        if answer is None:
            environ["wsgi.input"] = io.BytesIO(request.get_data())
            return moto(environ, start_response)
        return answer(environ, start_response)

    def metadata(request):
        token = "X-aws-ec2-metadata-token"
        if request.path == IMDS + "api/token":
            ttl = {token + "-ttl-seconds": "21600"}
            return Response("imds-token", 200 if request.method == "PUT" else 405, ttl)
        if request.headers.get(token) != "imds-token":
            return Response("", 401)
        with LOCK:
            CALLS["metadata"] = CALLS.get("metadata", 0) + 1
        role = IMDS + "meta-data/iam/security-credentials/"
        if request.path in (role, role + "default-role"):
            return moto
        return Response("", 404)

    return serve


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    MOTO = DomainDispatcherApplication(create_backend_app)
    run_simple(
        "127.0.0.1",
        int(sys.argv[1]),
        application(MOTO),
        threaded=True,
        request_handler=MotoRequestHandler,
    )
