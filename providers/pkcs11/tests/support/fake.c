/* A fake: SoftHSM's library, but for calls that it was told to spoil. It stands for what hardware and
 * vendors' libraries do: $FAKE_DIR/fake.order names what, and fake.logins has a byte for each login. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long CK_ULONG;
typedef CK_ULONG (*function)();
struct list {
	unsigned char version[2];
	function f[68];
};
struct mechanism {
	CK_ULONG type;
	void *parameter;
	CK_ULONG length;
};
struct gcm {
	unsigned char *iv;
	CK_ULONG iv_length;
};
struct attribute {
	CK_ULONG type;
	void *value;
	CK_ULONG length;
};
/* Places in CK_FUNCTION_LIST. */
enum { OPEN_SESSION = 12, LOGIN = 18, GET_ATTRIBUTES = 24, ENCRYPT_INIT = 29, DECRYPT = 34 };
enum { GENERAL_ERROR = 5, FUNCTION_FAILED = 6, TYPE_INVALID = 0x12, DEVICE_ERROR = 0x30, SESSION_COUNT = 0xb1, AES_GCM = 0x1087, CHECK_VALUE = 0x90 };

static struct list *real, fake;

static FILE *file(const char *name, const char *mode)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", getenv("FAKE_DIR"), name);
	return fopen(path, mode);
}

static int told(const char *what)
{
	char order[64] = "";
	FILE *f = file("fake.order", "r");
	if (f) {
		if (!fgets(order, sizeof order, f))
			order[0] = 0;
		fclose(f);
	}
	return !strcmp(order, what);
}

static CK_ULONG open_session(CK_ULONG slot, CK_ULONG flags, void *a, void *b, CK_ULONG *session)
{
	return told("full") ? SESSION_COUNT : real->f[OPEN_SESSION](slot, flags, a, b, session);
}

static CK_ULONG login(CK_ULONG session, CK_ULONG user, char *pin, CK_ULONG length)
{
	FILE *f = file("fake.logins", "a");
	fputc('x', f);
	fclose(f);
	if (told("login"))
		return FUNCTION_FAILED;
	return real->f[LOGIN](session, user, pin, length);
}

/* As a token without check values. */
static CK_ULONG get_attributes(CK_ULONG session, CK_ULONG object, struct attribute *all, CK_ULONG count)
{
	CK_ULONG answer = real->f[GET_ATTRIBUTES](session, object, all, count);
	for (CK_ULONG i = 0; i < count && told("bare"); i++)
		if (all[i].type == CHECK_VALUE) {
			all[i].length = -1UL;
			answer = TYPE_INVALID;
		}
	return answer;
}

static CK_ULONG encrypt_init(CK_ULONG session, struct mechanism *mechanism, CK_ULONG key)
{
	if (told("broken"))
		return DEVICE_ERROR;
	/* As tokens that obey FIPS do. */
	if (told("iv") && mechanism->type == AES_GCM) {
		struct gcm *gcm = mechanism->parameter;
		int random = open("/dev/urandom", O_RDONLY);
		for (CK_ULONG i = 0; i < gcm->iv_length; i++)
			if (gcm->iv[i])
				return GENERAL_ERROR;
		if (read(random, gcm->iv, gcm->iv_length) < 0)
			return GENERAL_ERROR;
		close(random);
	}
	return real->f[ENCRYPT_INIT](session, mechanism, key);
}

static CK_ULONG decrypt(CK_ULONG session, void *in, CK_ULONG length, void *out, CK_ULONG *size)
{
	if (told("broken"))
		return DEVICE_ERROR;
	while (told("hang"))
		pause();
	return real->f[DECRYPT](session, in, length, out, size);
}

CK_ULONG C_GetFunctionList(struct list **list)
{
	void *library = dlopen("/usr/lib/softhsm/libsofthsm2.so", RTLD_NOW | RTLD_LOCAL);
	function get = library ? (function)dlsym(library, "C_GetFunctionList") : 0;
	if (!get || get(&real))
		return GENERAL_ERROR;
	fake = *real;
	fake.f[OPEN_SESSION] = open_session;
	fake.f[LOGIN] = login;
	fake.f[GET_ATTRIBUTES] = get_attributes;
	fake.f[ENCRYPT_INIT] = encrypt_init;
	fake.f[DECRYPT] = decrypt;
	*list = &fake;
	return 0;
}
