"""PyKMIP for the end-to-end tests: its server as it is, and its client for the owner of keys.

usage: pykmip.py serve CONFIG LOG
       pykmip.py owner PORT CERT KEY CA, which reads calls from stdin, one in a line: a method of
       PyKMIP's client and its arguments in JSON; and answers each with a line of JSON
"""

import json
import sys

from kmip.core import enums
from kmip.pie.client import ProxyKmipClient
from kmip.services.server import KmipServer


def serve(config, log):
    with KmipServer(config_path=config, log_path=log) as server:
        server.serve()


def call(client, method, *arguments):
    if method == "create":
        masks = [enums.CryptographicUsageMask.ENCRYPT, enums.CryptographicUsageMask.DECRYPT]
        aes = enums.CryptographicAlgorithm.AES
        return client.create(aes, 256, name=arguments[0], cryptographic_usage_mask=masks)
    if method == "revoke":
        return client.revoke(enums.RevocationReasonCode[arguments[0]], arguments[1])
    return getattr(client, method)(*arguments)


def owner(port, cert, key, ca):
    version = enums.KMIPVersion.KMIP_1_4
    with ProxyKmipClient(
        hostname="127.0.0.1", port=int(port), cert=cert, key=key, ca=ca, kmip_version=version
    ) as client:
        for line in sys.stdin:
            print(json.dumps(call(client, *json.loads(line))), flush=True)


if __name__ == "__main__":
    {"serve": serve, "owner": owner}[sys.argv[1]](*sys.argv[2:])
